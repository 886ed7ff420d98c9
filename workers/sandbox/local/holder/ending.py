"""To signal and to end what runs below us, however it forks meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

from . import descendants
from .children import Children
from .descendants import Process
from .worker_line import WorkerLine

LINUX = sys.platform == "linux"
RESCAN_MAX_S = 0.05
LOOKS = 20
"""So often is a tree looked at again for what was forked meanwhile."""


def kill(line: WorkerLine, children: Children, pid: int, number: int, scope: str) -> None:
    """Signals a child of ours: its group, the `others` of its group, or its `tree`."""
    if scope == "tree":
        _kill_tree(line, children, pid, number)
    elif scope == "others":
        for process in descendants.process_table():
            if process.group == pid and process.pid != pid:
                descendants.signal_exactly(process, number)
    elif pid in children.pids:  # not reaped yet, so the number is still its own
        with contextlib.suppress(OSError):
            os.killpg(pid, number)


def end_everything(line: WorkerLine, children: Children, grace_s: float) -> None:
    """Returns when not one descendant is left. There is no giving up: a lease that is free must mean what it says."""
    if grace_s > 0:
        _ask_to_end(line, children, grace_s)
    if children.walls is not None:
        descendants.signal_exactly(children.walls.keeper, signal.SIGKILL)  # and the kernel ends all of its PID namespace with it
    pause = 0.001
    while children.reap():
        if LINUX:
            _signal_all_of(descendants.below(os.getpid(), descendants.process_table()), signal.SIGKILL)
        else:
            _signal_groups(children.pids, signal.SIGKILL)
        line.wait_for_child(pause)
        pause = min(2 * pause, RESCAN_MAX_S)


def _kill_tree(line: WorkerLine, children: Children, root: int, number: int) -> None:
    """A child, its descendants and its session, again and again until a look finds none."""
    if not LINUX:
        with contextlib.suppress(OSError):
            os.killpg(root, number)
        return
    known = {root}
    pause = 0.001
    for _ in range(LOOKS):
        table = descendants.process_table()
        mine = [process for process in descendants.below(os.getpid(), table) if process.session == root or process.pid in known]
        mine += [process for process in descendants.below(root, table) if process not in mine]
        alive = [process for process in mine if not process.has_ended]
        if not alive:
            break
        known.update(process.pid for process in mine)
        _signal_all_of(alive, number)
        if number != signal.SIGKILL:
            break
        line.wait_for_child(pause)
        children.reap()
        pause = min(2 * pause, RESCAN_MAX_S)


def _ask_to_end(line: WorkerLine, children: Children, grace_s: float) -> None:
    """Signals what runs in the sandbox, and waits until it has ended or the time is up."""
    deadline = time.monotonic() + grace_s
    pause = 0.001
    asked = False
    while children.reap() and (left := deadline - time.monotonic()) > 0:
        if LINUX:
            running = descendants.below(os.getpid(), descendants.process_table())
            if children.walls is not None:
                running = children.walls.inside(running)
                if all(process.has_ended for process in running):
                    return
            if not asked:
                for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
                    for process in running:
                        descendants.signal_exactly(process, number)
        elif not asked:
            _signal_groups(children.pids, signal.SIGTERM)
        asked = True
        line.wait_for_child(left if children.walls is None else min(left, pause))
        pause = min(2 * pause, RESCAN_MAX_S)


def _signal_all_of(processes: list[Process], number: int) -> None:
    """Whole groups at once where they can be: a group signal cannot be outrun by a process that keeps forking."""
    own = os.getpgrp()
    _signal_groups({process.group for process in processes} - {own, 0, 1}, number)
    for process in processes:
        descendants.signal_exactly(process, number)


def _signal_groups(groups: Iterable[int], number: int) -> None:
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, number)
