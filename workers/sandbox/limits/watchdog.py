"""Bounds sandboxes as wholes, where the kernel does not do it for us: memory, processes, CPU time, disk. One a node.

1. A look a second costs a few milliseconds for hundreds of processes (`process_table.py`). It is sooner when a sandbox is near a bound, and
   later when looks are dear: whatever runs on the node, looking takes at most `MOST_SHARE` of a core.
2. Over a bound, processes are ended, never the sandbox: its shell and files stay, so the agent reads what happened and can go on. Who is
   ended is named in a notice before it ends (`ending.py`); notices come with results (`notices.py`) and are in the sandbox's use.
      memory      the largest processes, until the rest fits
      processes   all but shells and kernels; these too when it happens again soon
      CPU time    whatever still computes, at each look from then on
      disk        whatever wrote since the last count, after each count until files are deleted; what holds deleted ones open. While it
                  gets less nobody is ended: who deletes writes too
3. It acts on processes that descend from the sandbox's holder, are inside its walls and are still themselves; never on a name.
4. It can be late: between two looks a process may take what the machine gives. The kernel's own bounds (one process's memory, one file's
   size, `pid_max`, groups) hold at every moment; what runs in sandboxes is what the kernel ends first when memory runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from workers.sandbox.limits import ending, verdicts
from workers.sandbox.limits.disk import DiskCounter
from workers.sandbox.limits.held_files import SharedMemory, held_files, own_shared_memory_bytes
from workers.sandbox.limits.process_table import Process, ProcessTable, own_share_bytes, total, written_bytes
from workers.sandbox.limits.verdicts import MIB, Weighed, is_near, size_text
from workers.sandbox.limits.watch import COUNT_EVERY_S, FILLED_BYTES, Watch, Watched

log = structlog.get_logger(__name__)

WATCHES = sys.platform == "linux"
"""Whether there is a process table to look at."""
PERIOD_S, SOON_S = 1.0, 0.2
MOST_SHARE = 0.04
"""Of a core, for looks. With what the event loop adds this stays below the 5 % a node may spend on watching."""
SMALL_BYTES = 4 * 1024 * 1024
"""A process with less is weighed by its RSS: walking its mappings would cost more than it could tell."""
AGAIN_S = 10.0
MIN_FREE_BYTES = 512 * 1024 * 1024
"""With less free disk than this, whoever writes is ended: a full disk would end every sandbox of the node."""

COUNTED_ABOVE = 4
"""Files are counted to a quarter above their bound: so far it is known whether they get more or less."""
FIRST_COUNT_S = 5.0
"""After an attachment; what it found there is soon known, and a start is not slowed down."""


class Watchdog:
    """Watches the sandboxes of this process.

    Args:
        scratch_dir: the disk they live on.
    """

    def __init__(self, scratch_dir: Path) -> None:
        self._scratch = scratch_dir
        self._watches: dict[Watch, None] = {}
        self._table = ProcessTable()
        self._counter = DiskCounter()
        self._shared_memory = SharedMemory()
        self._tasks: list[asyncio.Task[None]] = []
        self._some = asyncio.Event()
        self._look_now = asyncio.Event()
        self._looked = asyncio.Event()
        self._free_bytes = self._free_files = 0
        self._is_emptying = False
        self.looks = 0
        self.look_cpu_s = 0.0
        """CPU seconds that all looks took."""

    async def __aenter__(self) -> Self:
        if WATCHES:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._keep_looking(), name="sandbox-watchdog"),
                loop.create_task(self._keep_counting(), name="sandbox-disk-count"),
            ]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._counter.close()
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end

    def watch(self, watched: Watched) -> Watch:
        """Begins to bound a sandbox."""
        watch = Watch(watched, self._unwatch)
        self._read_disk()
        watch.disk.at_s = time.monotonic() - COUNT_EVERY_S + FIRST_COUNT_S
        watch.disk.free_bytes, watch.disk.free_files = self._free_bytes, self._free_files
        self._watches[watch] = None
        self._some.set()
        return watch

    def look_soon(self) -> None:
        """Does not wait for the period: for who knows that something has just changed."""
        self._look_now.set()

    def _unwatch(self, watch: Watch) -> None:
        self._watches.pop(watch, None)
        if not self._watches:
            self._some.clear()

    # -- processes ----------------------------------------------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            await self._some.wait()
            try:
                took_s, soon = await asyncio.to_thread(self._look, list(self._watches))
            except OSError as error:  # no descriptor left, say: what is over a bound now is so at the next look
                log.error("sandboxes_not_looked_at", error=str(error))
                took_s, soon = 0.0, False
            self._looked.set()
            pause_s = max(SOON_S if soon else PERIOD_S, took_s / MOST_SHARE)
            self._look_now.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._look_now.wait()
            except TimeoutError:
                continue

    def _look(self, watches: Sequence[Watch]) -> tuple[float, bool]:
        """One look at all; returns the CPU seconds it took, and whether somebody is near a bound."""
        began_s = time.thread_time()
        soon = self._look_at_disk()
        families = self._table.look(watch.watched.holder_pid for watch in watches)
        has_moved = self._shared_memory.has_moved()
        for watch in watches:
            if not watch.is_there:
                continue
            memory_before = watch.memory_bytes
            watch.take_in(families[watch.watched.holder_pid])
            if has_moved or watch.sees_hidden:
                self._look_at_held(watch)
            with watch.judging:
                soon = self._judge(watch, memory_before) or soon
            watch.forget_ended()
        took_s = time.thread_time() - began_s
        self.looks += 1
        self.look_cpu_s += took_s
        return took_s, soon

    def _look_at_disk(self) -> bool:
        """Whether the node's disk fills up quickly, or is nearly full."""
        before = self._free_bytes
        self._read_disk()
        self._is_emptying = self._free_bytes > before
        return self._free_bytes < MIN_FREE_BYTES or before - self._free_bytes > FILLED_BYTES

    def _read_disk(self) -> None:
        with contextlib.suppress(OSError):
            found = os.statvfs(self._scratch)
            self._free_bytes, self._free_files = found.f_bavail * found.f_frsize, found.f_favail

    def _judge(self, watch: Watch, memory_before: int) -> bool:
        """Ends what is over a bound; whether something is near one."""
        limits = watch.watched.limits
        watch.look_at_events()
        self._judge_processes(watch)
        self._judge_memory(watch)
        if watch.cpu_s > limits.sandbox_cpu_s:
            self._end_busy(watch)
        low = self._free_bytes < MIN_FREE_BYTES
        if watch.disk.is_fresh or low:
            watch.disk.is_fresh = False
            self._end_writers(watch, low)
        elif not watch.disk.is_over:
            watch.written_before = None
        growth = watch.memory_bytes - memory_before
        return (
            watch.disk.is_over
            or 2 * watch.memory_bytes > limits.sandbox_memory_bytes
            or watch.memory_bytes + 2 * growth > limits.sandbox_memory_bytes
            or 2 * watch.processes > limits.processes
        )

    def _look_at_held(self, watch: Watch) -> None:
        held = held_files(watch.inside)
        watch.held_memory, watch.sees_hidden = held.memory, bool(held.hidden)
        if watch.watched.keeper_pid:  # behind walls only a program that its owner may not read hides, once it runs
            hidden = [process for process in held.hidden if _hides(watch, process)]
            over = "files: what a process holds open has to be seen, as it is in no folder; killed what cannot be looked into"
            ending.kill(hidden, lambda names: watch.tell(f"{over}: {names}"))

    def _judge_memory(self, watch: Watch) -> None:
        limit = watch.watched.limits.sandbox_memory_bytes
        here = [process for process in watch.inside if not process.is_ended]
        held = {process: watch.held_memory.get((process.pid, process.started), 0) for process in here}
        if not is_near(watch.memory_bytes + sum(held.values()), limit):
            return
        used = sum(_weight(process, held[process], SMALL_BYTES) for process in here)
        if used <= limit:
            return
        # what many small ones share would end somebody now
        weighed = [Weighed(process, _weight(process, held[process])) for process in here]
        used = sum(one.bytes for one in weighed)
        over = f"memory: the sandbox used {size_text(used)} of its {size_text(limit)}"
        for one in verdicts.too_heavy(weighed, limit):

            def tell(name: str, size: str = size_text(one.bytes)) -> None:
                watch.tell(f"{over}; its largest process, {name} with {size}, was killed")

            ending.kill([one.process], tell)

    def _judge_processes(self, watch: Watch) -> None:
        limit = watch.watched.limits.processes
        count = watch.processes
        if count < limit:
            watch.had_many_ended = False
            return
        alive = total(process for process in watch.inside if not process.is_ended)
        if alive < limit and not watch.had_many_ended:
            watch.had_many_ended = True  # those of a bomb that was just ended are taken in by the next look; nobody else pays for it
            return
        again = time.monotonic() - watch.bombed_at_s < AGAIN_S
        watch.bombed_at_s = time.monotonic()
        roots = [each.watched.holder_pid for each in self._watches]
        if watch.watched.holder_pid not in roots:
            return

        def family() -> list[Process]:
            watch.take_in(self._table.look(roots)[watch.watched.holder_pid])
            return watch.inside

        whom = "all of them were" if again else "all but the shells and kernels were"
        over = f"processes: the sandbox had {count:,} of its {limit:,} processes and threads; {whom} killed"
        ending.stop_then_kill(family, lambda process: not again and watch.is_session(process), lambda names: watch.tell(f"{over}: {names}"))

    def _end_busy(self, watch: Watch) -> None:
        over = f"cpu: the sandbox has used up its {watch.watched.limits.sandbox_cpu_s:,} seconds of CPU time"
        busy = verdicts.busy(watch.inside, watch.cpu_before_s, watch.is_session)
        ending.kill(busy, lambda names: watch.tell(f"{over}; killed: {names}"))

    def _end_writers(self, watch: Watch, low: bool) -> None:
        if watch.disk.over_by == "deleted" and self._end_holders(watch):
            return
        over = f"{_disk_text(watch)}: delete some"
        if low and not watch.disk.is_over:
            over = f"disk: the node has only {size_text(self._free_bytes)} left"
        written = {process: written_bytes(process.pid) for process in watch.inside if not process.is_ended}
        written = {process: count for process, count in written.items() if count is not None or _hides(watch, process)}
        if watch.disk.is_growing or (low and not self._is_emptying):
            writers = verdicts.writers(written, watch.written_before)
            ending.kill(writers, lambda names: watch.tell(f"{over}; killed what was writing: {names}"))
        watch.written_before = {(process.pid, process.started): count for process, count in written.items() if count is not None}

    def _end_holders(self, watch: Watch) -> bool:
        """Nothing but the end of who holds them frees files that have no name any more; False when nobody holds much."""
        holders = [process for process in watch.inside if watch.held_disk.get((process.pid, process.started), 0) >= MIB]
        over = f"{_disk_text(watch)}, deleted ones that are still open among them"
        ending.kill(holders, lambda names: watch.tell(f"{over}; killed what holds these: {names}"))
        return bool(holders)

    # -- disk ---------------------------------------------------------------------------------------------------------------------------

    async def _keep_counting(self) -> None:
        while True:
            await self._looked.wait()
            self._looked.clear()
            due = [watch for watch in self._watches if watch.watched.folders and self._is_due(watch)]
            for watch in due:
                if watch in self._watches:
                    await self._count(watch)

    def _is_due(self, watch: Watch) -> bool:
        now_s = time.monotonic()
        return watch.disk.is_due(now_s, watch.cpu_s, self._free_bytes, self._free_files, watch.watched.limits)

    async def _count(self, watch: Watch) -> None:
        limits, state = watch.watched.limits, watch.disk
        state.cpu_s, state.free_bytes, state.free_files = watch.cpu_s, self._free_bytes, self._free_files
        began_s = time.monotonic()
        before = state.counted
        try:
            most = limits.files + limits.files // COUNTED_ABOVE
            named = await self._counter.count(watch.watched.folders, max_files=most)
            held = await asyncio.to_thread(held_files, watch.inside)
            watch.held_disk, watch.sees_hidden = held.disk, watch.sees_hidden or bool(held.hidden)
        except OSError as error:
            log.error("sandbox_disk_not_counted", sandbox_id=watch.watched.sandbox_id, error=str(error))
            return
        finally:
            state.at_s = time.monotonic()
            state.took_s = state.at_s - began_s
        state.counted = replace(named, bytes=named.bytes + sum(watch.held_disk.values()))
        cause = verdicts.over_by(named, state.counted.bytes, limits)
        over = cause != ""
        grew = state.counted.bytes > before.bytes or named.files > before.files or named.files > most
        state.is_growing = over and (grew or not state.is_over)
        state.is_fresh = over
        if over:
            if cause not in (state.over_by, "deleted"):
                watch.tell(f"{_disk_text(watch)}: whatever writes is killed until some are deleted")
            self.look_soon()
        state.is_over, state.over_by = over, cause


def _hides(watch: Watch, process: Process) -> bool:
    return verdicts.hides(process, time.clock_gettime(time.CLOCK_BOOTTIME), watch.inside)


def _weight(process: Process, held_bytes: int, small_bytes: int = 0) -> int:
    """What it takes by itself; one with less than `small_bytes` is not asked how much of that it shares.

    Args:
        held_bytes: its files in memory, mapped or not.
    """
    unmapped = max(0, held_bytes - own_shared_memory_bytes(process.pid)) if held_bytes else 0
    if process.rss_bytes < small_bytes:
        return process.rss_bytes + unmapped
    share = own_share_bytes(process.pid)
    return (process.rss_bytes if share is None else share) + unmapped


def _disk_text(watch: Watch) -> str:
    limits, counted = watch.watched.limits, watch.disk.counted
    if counted.uncounted:
        return f"disk: {counted.uncounted} folders of the sandbox are nested too deeply to be counted"
    if counted.files > limits.files:
        return f"disk: the sandbox has more than its {limits.files:,} files"
    return f"disk: the files of the sandbox take {size_text(counted.bytes)} of its {size_text(limits.disk_bytes)}"
