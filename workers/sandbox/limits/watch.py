"""What the watchdog knows of one sandbox: its bounds, its processes, what it has used, and what was done about it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from workers.sandbox.limits.cgroups import Events, SandboxCgroup
from workers.sandbox.limits.disk import DiskUse
from workers.sandbox.limits.notices import Notices
from workers.sandbox.limits.process_table import Process, numbers_of, read_process, total
from workers.sandbox.limits.verdicts import DiskCause, size_text
from workers.sandbox.spec import Limits
from workers.sandbox.use import SandboxUse

log = structlog.get_logger(__name__)

COUNT_EVERY_S = 60.0
"""Of a sandbox that computes, although the disk shows no sign of it."""
COUNT_AT_LEAST_S = 1.0
COUNT_COST = 20
"""A count is not repeated before so many times what it took."""
FILLED_BYTES = 64 * 1024 * 1024
FILLED_FILES = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One sandbox to be bounded."""

    sandbox_id: str
    limits: Limits
    holder_pid: int
    """All processes of the sandbox descend from it."""
    keeper_pid: int = 0
    """PID 1 inside, as the node counts: what else is in a PID namespace below the holder's is the sandbox's own. 0 = no walls, all
    descendants are."""
    starter_pid: int = 0
    """What starts its shells, kernels and commands; 0 = the holder."""
    folders: tuple[Path, ...] = ()
    """What counts as its disk."""
    cgroup: SandboxCgroup | None = None
    cpu_used_s: float = 0.0
    """By earlier attachments."""
    enforced: Mapping[str, str] = field(default_factory=dict)
    """What bounds it on this node (`enforced.py`)."""
    network: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Bytes that have gone through its way to the network so far, and requests that were refused there."""


class Watch:
    """What the watchdog knows of one sandbox. `use` and `take_notices` may be called at any time, also after its end."""

    def __init__(self, watched: Watched, close: Callable[[Watch], None]) -> None:
        self.watched = watched
        self._close = close
        self.notices = Notices()
        holder = read_process(watched.holder_pid)
        self._holder_started = holder.started if holder else -1
        self._depth = len(numbers_of(watched.holder_pid))
        self._inside: dict[tuple[int, int], bool] = {}
        self._tree_cpu_s = self._lost_cpu_s = 0.0
        self._counters = watched.cgroup.event_counters() if watched.cgroup else None
        self._events = self._counters.read() if self._counters else Events()
        self._looking_at_events = threading.Lock()
        self.judging = threading.Lock()
        """Held while something in it may be ended."""
        self.inside: list[Process] = []
        """The sandbox's own processes at the last look."""
        self.memory_bytes = self.memory_peak_bytes = self.processes = self.processes_peak = 0
        self.cpu_s = watched.cpu_used_s
        self.cpu_before_s: dict[tuple[int, int], float] = {}
        self.written_before: dict[tuple[int, int], int] | None = None
        self.bombed_at_s = float("-inf")
        self.had_many_ended = False
        """At the last look it was over its processes by those that had ended."""
        self.disk = DiskState()
        self.held_memory: Mapping[tuple[int, int], int] = {}
        """Bytes of files in memory without a name, by number and start of the process that holds them, when last asked."""
        self.sees_hidden = False
        """Some could not be looked into."""
        self.held_disk: Mapping[tuple[int, int], int] = {}
        """As that, of deleted files on the disk."""

    def use(self) -> SandboxUse:
        """What was used so far: CPU time until now where the kernel counts it for us, the rest as the last look found it."""
        counted_s = self.watched.cgroup.cpu_s() if self.watched.cgroup else None
        self.cpu_s = max(self.cpu_s, self.watched.cpu_used_s + (counted_s or 0.0))
        network_bytes, network_refused = self.watched.network()
        return SandboxUse(
            enforced=self.watched.enforced,
            memory_bytes=self.memory_bytes,
            memory_peak_bytes=self.memory_peak_bytes,
            processes=self.processes,
            processes_peak=self.processes_peak,
            cpu_s=round(self.cpu_s, 3),
            cpu_before_s=round(self.watched.cpu_used_s, 3),
            disk_bytes=self.disk.counted.bytes,
            files=self.disk.counted.files,
            network_bytes=network_bytes,
            network_refused=network_refused,
            notices=self.notices.all(),
        )

    async def quiet(self) -> None:
        """Returns when nothing in it is being ended: what was started meanwhile would be ended for what others did, and not know why."""
        if self.judging.locked():
            await asyncio.to_thread(self._wait_quiet)

    def take_notices(self, since: int) -> tuple[str, ...]:
        """For the result of a call that began when `notices.told` was `since`: what it has to say beside its own (`notices.py`).

        What the kernel did by itself is asked for now: it has counted it before its victim could end.
        """
        self.look_at_events()
        return self.notices.take(since)

    def finish(self, reaped_cpu_s: float) -> None:
        """Everything in it has ended. What ended since the last look is in no look: its time counts all the same.

        Args:
            reaped_cpu_s: CPU seconds of all that its holder waited for, and of what those had waited for.
        """
        counted = self.watched.cgroup.cpu_s() if self.watched.cgroup else None
        used_s = reaped_cpu_s + self._lost_cpu_s if counted is None else counted
        self.cpu_s = max(self.cpu_s, self.watched.cpu_used_s + used_s)

    def close(self) -> None:
        """Ends the watch; of the sandbox nothing is touched any more once a look that is under way has ended."""
        self._close(self)
        self.look_at_events()  # what comes now is no more of this sandbox's than of its removal
        with self._looking_at_events:
            if self._counters is not None:
                self._counters.close()

    # -- for the watchdog ---------------------------------------------------------------------------------------------------------------

    def tell(self, notice: str) -> None:
        self.notices.tell(notice)
        log.warning("sandbox_limit", sandbox_id=self.watched.sandbox_id, notice=notice)

    def take_in(self, members: Sequence[Process]) -> None:
        """Accounts for one look."""
        self.inside = [process for process in members if self._is_inside(process)]
        self.memory_bytes = sum(process.rss_bytes for process in self.inside)
        self.memory_peak_bytes = max(self.memory_bytes, self.memory_peak_bytes)
        self.processes = total(self.inside)
        self.processes_peak = max(self.processes, self.processes_peak)
        self.cpu_s = max(self.cpu_s, self.watched.cpu_used_s + self._count_cpu(members))  # a look may end after `finish`

    def is_session(self, process: Process) -> bool:
        """Whether it was started by us: a shell, a kernel, a command."""
        return process.parent == (self.watched.starter_pid or self.watched.holder_pid)

    def _wait_quiet(self) -> None:
        with self.judging:
            return

    def look_at_events(self) -> None:
        """Tells what the kernel has done since the last time."""
        if self._counters is None:
            return
        limits = self.watched.limits
        with self._looking_at_events:  # the watchdog, and whoever makes a result
            before, now = self._events, self._counters.read()
            if now.memory_kills > before.memory_kills:
                killed = now.memory_kills - before.memory_kills
                self.memory_peak_bytes = max(self.memory_peak_bytes, limits.sandbox_memory_bytes)  # between two looks
                self.tell(
                    f"memory: the sandbox reached its {size_text(limits.sandbox_memory_bytes)}; the kernel killed {killed} of its processes"
                )
            if now.refused_forks and not before.refused_forks:
                self.tell(f"processes: the sandbox reached its {limits.processes:,}; the kernel refuses more")
            self._events = Events(
                memory_kills=max(now.memory_kills, before.memory_kills), refused_forks=max(now.refused_forks, before.refused_forks)
            )  # a group that is gone counts nothing any more

    @property
    def is_there(self) -> bool:
        holder = read_process(self.watched.holder_pid)
        return holder is not None and holder.started == self._holder_started and not holder.is_ended

    def _is_inside(self, process: Process) -> bool:
        """The keeper, and what built the walls, are not the sandbox's own."""
        if not self.watched.keeper_pid:
            return True
        if process.pid == self.watched.keeper_pid:
            return False
        identity = (process.pid, process.started)
        if identity not in self._inside:
            numbers = numbers_of(process.pid)
            if not numbers:  # it has ended
                return False
            self._inside[identity] = len(numbers) > self._depth
        return self._inside[identity]

    def _count_cpu(self, members: Sequence[Process]) -> float:
        """The kernel adds the time of an ended process to who waited for it; when nobody did, the sum falls, and what was there is kept."""
        counted = self.watched.cgroup.cpu_s() if self.watched.cgroup else None
        if counted is not None:
            return counted
        holder = read_process(self.watched.holder_pid)
        tree = sum(process.cpu_s + process.reaped_cpu_s for process in members) + (holder.reaped_cpu_s if holder else 0.0)
        self._lost_cpu_s += max(0.0, self._tree_cpu_s - tree)
        self._tree_cpu_s = tree
        return tree + self._lost_cpu_s

    def forget_ended(self) -> None:
        there = {(process.pid, process.started) for process in self.inside}
        self._inside = {identity: inside for identity, inside in self._inside.items() if identity in there or not inside}
        self.cpu_before_s = {(process.pid, process.started): process.cpu_s for process in self.inside}


@dataclass(slots=True)
class DiskState:
    """When a sandbox's files were counted, and what has happened since."""

    counted: DiskUse = field(default_factory=DiskUse)
    at_s: float = float("-inf")
    took_s: float = 0.0
    cpu_s: float = -1.0
    free_bytes: int = 0
    free_files: int = 0
    is_over: bool = False
    is_fresh: bool = False
    """It was found over its bound by a count that no look has seen yet."""
    is_growing: bool = False
    """It had not got less by that count: whoever writes is ended."""
    over_by: DiskCause = ""

    def is_due(self, now_s: float, cpu_s: float, free_bytes: int, free_files: int, limits: Limits) -> bool:
        """Whether files may have come that make a difference. Who computes nothing writes nothing."""
        if now_s - self.at_s < max(COUNT_AT_LEAST_S, COUNT_COST * self.took_s):
            return False
        if self.is_over:
            return True
        if cpu_s <= self.cpu_s:
            return False
        room = limits.disk_bytes - self.counted.bytes
        room_files = limits.files - self.counted.files
        filled = self.free_bytes - free_bytes >= min(FILLED_BYTES, room // 2)
        crowded = self.free_files - free_files >= min(FILLED_FILES, room_files // 2)
        return filled or crowded or now_s - self.at_s >= COUNT_EVERY_S
