"""What the execution server started: on its way to become a program, running, ended; and how each is signalled.

1. A request is answered STARTED or FAILED once, then ENDED once; a child that ends before it was heard of is heard first.
2. Nothing here waits. A child tells through a pipe that closes as its program starts; one that is held up is killed when its time is up.
3. A number of a process is signalled while it is the one that was started, or while its session lives on without it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import termios
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from workers.sandbox.inside.guest import frames
from workers.sandbox.local.holder import becoming, descendants, entering
from workers.sandbox.local.holder.starting import prepare

START_S = 10.0
"""For a child on its way, a thousand times what it takes: something inside stops it."""
KEPT_ENDED = 4096
"""Sessions whose leader has ended, and that may have to be killed; the oldest are forgotten."""
LOOKS = 20
"""So often is a tree looked at again for what was forked meanwhile."""
LOOK_AGAIN_MAX_S = 0.05
OOM_SCORE_INSIDE = b"1000"


class Child:
    """One process that was asked for."""

    __slots__ = ("deadline", "has_ended", "is_ours", "number", "pid", "pipe", "started")

    def __init__(self, number: int, pid: int, pipe: int, *, is_ours: bool) -> None:
        self.number = number
        self.pid = pid
        self.pipe = pipe
        """Where it tells what keeps it from becoming its program; -1 when that is over."""
        self.deadline = time.monotonic() + START_S
        self.is_ours = is_ours
        """Runs our code to its end, and is never to be stopped."""
        self.has_ended = False
        try:
            self.started = descendants.Process(pid).started
        except OSError:  # no /proc to be read: its number has to do
            self.started = 0


class Hunt:
    """A tree of processes that is being killed, look by look."""

    __slots__ = ("child", "due", "known", "looks", "pause")

    def __init__(self, child: Child) -> None:
        self.child = child
        self.known = {child.pid}
        self.looks = 0
        self.pause = 0.001
        self.due = 0.0


class Children:
    """All of them.

    Args:
        answer: takes a reply to be sent.
        poll: where pipes of those on their way are registered.
        oom_score: a descriptor of this process's own score, opened while it could be; -1 = none.
    """

    def __init__(self, answer: Callable[[bytes], None], poll: select.poll, oom_score: int) -> None:
        self._answer = answer
        self._poll = poll
        self._oom_score = oom_score
        self._own_score = os.pread(oom_score, 16, 0) if oom_score >= 0 else b""
        self._by_pid: dict[int, Child] = {}
        self._by_number: dict[int, Child] = {}
        self._by_pipe: dict[int, Child] = {}
        self._ended: OrderedDict[int, Child] = OrderedDict()
        self._hunts: list[Hunt] = []
        self.limits: Mapping[str, int] = {}
        self.seccomp = b""

    # -- starting -----------------------------------------------------------------------------------------------------------------------

    def run(self, number: int, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Starts a program; `descriptors` are what it sees by the numbers in `fds`."""
        told, tell = os.pipe()
        try:
            pid = self._fork()
        except OSError as error:
            os.close(told)
            os.close(tell)
            self._fail(number, error)
            return
        if pid == 0:
            self._become(request, dict(zip(request["fds"], descriptors)), tell)
        os.close(tell)
        os.set_blocking(told, False)
        child = self._add(Child(number, pid, told, is_ours=False))
        self._by_pipe[told] = child
        self._poll.register(told, select.POLLIN)

    def work(self, number: int, do: Callable[[], None]) -> None:
        """Forks a process that runs our own code to its end."""
        try:
            pid = self._fork()
        except OSError as error:
            self._fail(number, error)
            return
        if pid == 0:
            try:
                os.setsid()
                do()
            finally:
                os._exit(0)
        child = self._add(Child(number, pid, -1, is_ours=True))
        self._answer(frames.reply(frames.STARTED, number, child.pid))

    def _become(self, request: Mapping[str, Any], places: Mapping[int, int], tell: int) -> NoReturn:
        """In the child. It stays one that nobody inside can look into until the kernel makes it the program."""
        try:
            os.setsid()
            if request["terminal"]:
                fcntl.ioctl(places[0], termios.TIOCSCTTY, 0)
            tell = becoming.put_in_place(places, tell)
            becoming.enter(request["cwd"])
            prepare(self.limits, follows_parent=False)()
            entering.drop_privileges(self.seccomp)
            becoming.become(request["argv"], request["env"])
        except OSError as error:
            becoming.tell(tell, error)
        finally:
            os._exit(126)

    def _fork(self) -> int:
        """When memory runs out children go first, and this process last: its score is theirs only while they inherit it."""
        self._set_score(OOM_SCORE_INSIDE)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                self._set_score(self._own_score)
        if pid == 0:
            signal.set_wakeup_fd(-1)  # its number may be another descriptor's in a moment
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return pid

    def _set_score(self, score: bytes) -> None:
        if self._oom_score >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._oom_score, score, 0)

    def _add(self, child: Child) -> Child:
        self._by_pid[child.pid] = self._by_number[child.number] = child
        return child

    def _fail(self, number: int, error: OSError) -> None:
        self._answer(frames.reply(frames.FAILED, number, error.errno or errno.EIO, error.strerror or str(error)))

    # -- hearing ------------------------------------------------------------------------------------------------------------------------

    def hear(self, pipe: int) -> None:
        """Something came through the pipe of a child on its way, or its end."""
        child = self._by_pipe.get(pipe)
        if child is None:
            return
        try:
            told = os.read(pipe, 4096)
        except BlockingIOError:
            return
        self._close_pipe(child)
        if told:
            code, _, text = told.decode("utf-8", "replace").partition(" ")
            self._fail(child.number, OSError(int(code), text))
            self._forget(child)
        else:
            self._answer(frames.reply(frames.STARTED, child.number, child.pid))

    def reap(self) -> None:
        """Takes in what has ended or was stopped, ours and orphans of others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._by_pid.get(pid)
            if child is None:
                continue
            if os.WIFSTOPPED(status):
                if child.is_ours or child.pipe >= 0:
                    _signal(pid, signal.SIGCONT)
                continue
            del self._by_pid[pid]
            child.has_ended = True
            if child.pipe >= 0:
                self.hear(child.pipe)
            if child.number in self._by_number:
                self._answer(frames.reply(frames.ENDED, child.number, _exit_code(status)))
                self._ended[child.number] = child
                if len(self._ended) > KEPT_ENDED:
                    self._by_number.pop(self._ended.popitem(last=False)[0], None)

    def step(self) -> None:
        """What time asks for."""
        now = time.monotonic()
        for child in [each for each in self._by_pipe.values() if each.deadline <= now]:
            _signal(child.pid, signal.SIGKILL)
            self._close_pipe(child)
            why = f"who is to become the program was held up for {START_S:g} s: something inside stops it"
            self._fail(child.number, OSError(errno.ETIMEDOUT, why))
            self._forget(child)
        self._hunts = [hunt for hunt in self._hunts if hunt.due > now or self._look(hunt, now)]

    def next_s(self) -> float | None:
        """Seconds until `step` has something to do."""
        dues = [hunt.due for hunt in self._hunts] + [child.deadline for child in self._by_pipe.values()]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _close_pipe(self, child: Child) -> None:
        self._poll.unregister(child.pipe)
        del self._by_pipe[child.pipe]
        os.close(child.pipe)
        child.pipe = -1

    def _forget(self, child: Child) -> None:
        """It came to nothing: its end is nobody's to hear of."""
        self._by_number.pop(child.number, None)

    # -- signalling -----------------------------------------------------------------------------------------------------------------------

    def kill(self, number: int, scope: str, signal_number: int) -> None:
        """Signals what a request started: its group, the `others` of its group, or its `tree`."""
        child = self._by_number.get(number)
        if child is None:
            return
        if scope == "tree":
            if signal_number == signal.SIGKILL:
                self._hunts.append(Hunt(child))
                self.step()
            else:
                _signal_all(_tree(child, {child.pid}), signal_number)
        elif scope == "others":
            for process in descendants.process_table():
                if process.group == child.pid and process.pid != child.pid:
                    _signal(process.pid, signal_number)
        elif not child.has_ended:
            try:
                os.killpg(child.pid, signal_number)
            except ProcessLookupError:  # it has not made its session yet
                _signal(child.pid, signal_number)

    def _look(self, hunt: Hunt, now: float) -> bool:
        """Kills what there is of a tree; whether it is to be looked at again."""
        found = _tree(hunt.child, hunt.known)
        hunt.looks += 1
        if not found or hunt.looks > LOOKS:
            return False
        hunt.known.update(process.pid for process in found)
        _signal_all(found, signal.SIGKILL)
        hunt.pause = min(2 * hunt.pause, LOOK_AGAIN_MAX_S)
        hunt.due = now + hunt.pause
        return True


def _tree(child: Child, known: set[int]) -> list[descendants.Process]:
    """What lives of a child, its descendants and its session."""
    table = descendants.process_table()
    if any(process.pid == child.pid and process.started != child.started for process in table):
        return []  # its number is another's by now, so its session is empty
    mine = {process.pid: process for process in descendants.below(child.pid, table)}
    mine.update((process.pid, process) for process in table if process.session == child.pid or process.pid in known)
    mine.pop(os.getpid(), None)
    return [process for process in mine.values() if not process.has_ended]


def _signal_all(processes: Sequence[descendants.Process], number: int) -> None:
    """Whole groups at once where they can be: a group signal cannot be outrun by a process that keeps forking."""
    for group in {process.group for process in processes} - {os.getpgrp(), 0, 1}:
        with contextlib.suppress(OSError):
            os.killpg(group, number)
    for process in processes:
        _signal(process.pid, number)


def _signal(pid: int, number: int) -> None:
    if pid > 1:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _exit_code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
