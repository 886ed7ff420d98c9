"""Control groups: the kernel's own bounds on a sandbox, where this user may make some.

    <a group we may write>/rollstream-PID-STARTED-N/   made by this process, removed by it, or by the next when it was killed
                              SANDBOX/                 memory, processes and CPU time of one sandbox

Each controller is looked for by itself, since nodes mix them: version 2 below our own group (where it is delegated: a user service, a
Slurm step), version 1 in the hierarchy of the controller. What is not there is left to the watchdog.

1. Only what runs for the sandbox is in its group: each child of its holder goes in before it becomes the program. The holder and the
   keeper are not, so the kernel's choice of a victim never ends the sandbox.
2. Version 2 lets a group have either processes or controllers below it. We step aside into a group of our own only when nobody but us is
   in ours; a group that others share is left as it is, and the reason is said.
3. A group of version 1 is never used by root, who may write all of them: that it can be written says nothing about whose it is.
4. A group is one sandbox's, so what is in it at the end is that sandbox's, and is ended. Where a group is stands on disk with the
   sandbox before anything is in it (`paths`): whoever tears the sandbox down ends the group too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workers.sandbox.limits.process_table import read_process, signal_exactly
from workers.sandbox.spec import Limits

PREFIX = "rollstream-"
ASIDE = "rollstream-service"
CONTROLLERS = ("memory", "pids", "cpu")
V1_NAMES = {"memory": "memory", "pids": "pids", "cpu": "cpuacct"}
WEIGHT = 33
"""CPU of all sandboxes of a process together, beside 100 for each neighbour of theirs: what `nice` 5 is to 0. Among them all are equal."""
EMPTY_S = 5.0
"""What is killed is gone in milliseconds; what is there after this hangs in the kernel."""

COUNTERS_BYTES = 4096
"""A file of counters has some hundred."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller in one sandbox's group."""

    version: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What the kernel did in a group since it was made."""

    memory_kills: int = 0
    refused_forks: int = 0


class EventCounters:
    """The counters of one group, kept open: each result of a command asks for them, and to open two files takes longer than all else of it.

    That they are open keeps no group from being removed; afterwards they count nothing. Not for two threads at once.

    Args:
        memory, pids: the files; None where there is no such controller.
    """

    def __init__(self, *, memory: Path | None, pids: Path | None) -> None:
        self._memory = _opened(memory)
        self._pids = _opened(pids)

    def read(self) -> Events:
        """Zeros where the kernel counts nothing, or no longer."""
        return Events(memory_kills=_read_counter(self._memory, b"oom_kill"), refused_forks=_read_counter(self._pids, b"max"))

    def close(self) -> None:
        """Twice is harmless."""
        for descriptor in (self._memory, self._pids):
            if descriptor >= 0:
                os.close(descriptor)
        self._memory = self._pids = -1


@dataclass(frozen=True, slots=True)
class SandboxCgroup:
    """The groups of one sandbox. Blocks, though never for long."""

    controllers: Mapping[str, Controller]

    @property
    def entries(self) -> tuple[str, ...]:
        """The files a process writes "0" to, to join."""
        return tuple(f"{path}/cgroup.procs" for path in self.paths)

    @property
    def paths(self) -> tuple[str, ...]:
        """The groups as folders."""
        return tuple(dict.fromkeys(str(controller.folder) for controller in self.controllers.values()))

    def limit(self, limits: Limits) -> None:
        """Sets the bounds.

        Raises:
            OSError: the kernel refused one.
        """
        if memory := self.controllers.get("memory"):
            name = "memory.max" if memory.version == 2 else "memory.limit_in_bytes"
            _write(memory.folder / name, limits.sandbox_memory_bytes)
            with contextlib.suppress(OSError):  # without swap accounting there is none to bound
                if memory.version == 2:
                    _write(memory.folder / "memory.swap.max", 0)
                else:
                    _write(memory.folder / "memory.memsw.limit_in_bytes", limits.sandbox_memory_bytes)
        if pids := self.controllers.get("pids"):
            _write(pids.folder / "pids.max", limits.processes)

    def event_counters(self) -> EventCounters:
        """What the kernel did in it, to be asked often."""
        memory, pids = self.controllers.get("memory"), self.controllers.get("pids")
        return EventCounters(
            memory=memory.folder / ("memory.events" if memory.version == 2 else "memory.oom_control") if memory else None,
            pids=pids.folder / "pids.events" if pids else None,
        )

    def events(self) -> Events:
        """Asked once."""
        counters = self.event_counters()
        try:
            return counters.read()
        finally:
            counters.close()

    def cpu_s(self) -> float | None:
        """CPU seconds of all that ever ran in it; None when the kernel does not count."""
        cpu = self.controllers.get("cpu")
        if cpu is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            if cpu.version == 1:
                return int((cpu.folder / "cpuacct.usage").read_text()) / 1e9
            return _counter(cpu.folder / "cpu.stat", "usage_usec") / 1e6
        return None

    def remove(self) -> bool:
        """False when something still runs in it."""
        removed = [_remove(Path(path)) for path in self.paths]
        return all(removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """Where this process may make groups."""

    bases: Mapping[str, Controller] = field(default_factory=dict)
    """Controller -> our own group in it; sandboxes get theirs below."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Controller -> why it is not ours to use."""

    def make(self, sandbox_id: str, limits: Limits) -> SandboxCgroup | None:
        """The bounded groups of one sandbox; None when there is no controller to use. Blocks.

        Raises:
            OSError: one could not be made or bounded; nothing is left of the try.
        """
        if not self.bases:
            return None
        made = SandboxCgroup({name: Controller(base.version, base.folder / sandbox_id) for name, base in self.bases.items()})
        try:
            for controller in made.controllers.values():
                controller.folder.mkdir(exist_ok=True)
            made.limit(limits)
        except OSError:
            made.remove()
            raise
        return made

    def close(self) -> None:
        """Removes our groups and what empty ones are in them. Blocks."""
        for base in self.bases.values():
            _remove_tree(base.folder)


def end_groups(sandbox_id: str, paths: Iterable[str]) -> tuple[int, ...]:
    """Kills what is in the groups of a sandbox whose holder has ended, and removes them. Blocks.

    Args:
        paths: as they were recorded; what does not look like a group that we made for this sandbox is not touched.

    Returns:
        Processes that did not end; empty = the groups are gone.
    """
    left: tuple[int, ...] = ()
    for path in map(Path, paths):
        if path.name == sandbox_id and path.parent.name.startswith(PREFIX):
            left += _empty(path)
            if not _is_ours_still(path.parent):
                _remove(path.parent)  # of a process that was killed; it stays while others are in it
    return left


def _empty(group: Path) -> tuple[int, ...]:
    """Again and again: what forks faster than it is killed has no number at some moment, and cannot get out."""
    deadline, pause_s = time.monotonic() + EMPTY_S, 0.001
    while not _remove(group):
        with contextlib.suppress(OSError):  # version 2, kernel 5.14 and later: all at once
            _write(group / "cgroup.kill", 1)
        members = _members(group)
        if time.monotonic() > deadline:
            return members
        for pid in members:
            process = read_process(pid)
            if process is not None and pid in _members(group):
                signal_exactly(process, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return ()


def _members(group: Path) -> tuple[int, ...]:
    with contextlib.suppress(OSError):
        return tuple(int(word) for word in (group / "cgroup.procs").read_text().split() if word != "0")
    return ()


def find_cgroups(*, proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> Cgroups:
    """Tries every controller, and removes what processes that were killed have left. Blocks.

    Args:
        proc, mounts: where the kernel shows itself; others in tests.
    """
    own = _own_groups(proc)
    bases: dict[str, Controller] = {}
    missing: dict[str, str] = {}
    unified, why_not = _unified_base(own.get("", ""), mounts, proc)
    own_name = _own_name()
    for name in CONTROLLERS:
        if unified and name in (unified / "cgroup.controllers").read_text().split():
            folder, version = unified, 2
        elif (group := own.get(V1_NAMES[name])) is not None and os.geteuid() == 0:
            missing[name] = "root may write every group of version 1, so none is known to be ours"
            continue
        elif group is not None:
            folder, version = mounts / V1_NAMES[name] / group.lstrip("/"), 1
        else:
            missing[name] = why_not or "the kernel has no such controller here"
            continue
        _remove_abandoned(folder)
        base = folder / own_name
        try:
            base.mkdir(exist_ok=True)
            if version == 2:
                _enable(base)
                with contextlib.suppress(OSError):  # the controller of CPU time may be another's
                    _write(base / "cpu.weight", WEIGHT)
        except OSError as error:
            _remove(base)
            missing[name] = f"{folder}: {error.strerror}"
        else:
            bases[name] = Controller(version, base)
    return Cgroups(bases=bases, missing=missing)


def _own_groups(proc: Path) -> dict[str, str]:
    """Controller of version 1 -> our group in its hierarchy; `""` -> our group in version 2."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            for name in controllers.split(","):
                found[name] = group
    return found


def _unified_base(group: str, mounts: Path, proc: Path) -> tuple[Path | None, str]:
    """Our group of version 2 with its controllers switched on for groups below; or why not."""
    if not group:
        return None, "no cgroup v2 here"
    root = mounts if (mounts / "cgroup.controllers").exists() else mounts / "unified"
    folder = root / group.lstrip("/")
    if folder.name == ASIDE:  # where we went before
        folder = folder.parent
    try:
        offered = (folder / "cgroup.controllers").read_text().split()
        if not set(CONTROLLERS) & set(offered):
            return None, f"{folder} offers no controller we use"
        if set(CONTROLLERS) & set((folder / "cgroup.subtree_control").read_text().split()):
            return folder, ""
        here = (folder / "cgroup.procs").read_text().split()
        if here and here != [(proc / "self").resolve().name]:
            why = "others run in it, so no controller can be switched on: run the service in a delegated group of its own"
            return None, f"{folder}: {why} (systemd-run --user --scope -p Delegate=yes)"
        if here:
            aside = folder / ASIDE
            aside.mkdir(exist_ok=True)
            _write(aside / "cgroup.procs", 0)
        _enable(folder)
    except OSError as error:
        return None, f"{folder}: {error.strerror}: it is not delegated to this user"
    return folder, ""


def _enable(folder: Path) -> None:
    offered = (folder / "cgroup.controllers").read_text().split()
    wanted = [f"+{name}" for name in CONTROLLERS if name in offered]
    _write(folder / "cgroup.subtree_control", " ".join(wanted))


def _own_name() -> str:
    me = read_process(os.getpid())
    return f"{PREFIX}{os.getpid()}-{me.started if me else 0}-{next(_numbers)}"


def _is_ours_still(base: Path) -> bool:
    """Whether the process that made a group runs; also where the name is none of that kind."""
    pid, started, number = [*base.name.removeprefix(PREFIX).split("-"), "", ""][:3]
    if not (pid.isdigit() and started.isdigit() and number.isdigit()):
        return True
    process = read_process(int(pid))
    return process is not None and process.started == int(started)


def _remove_abandoned(folder: Path) -> None:
    """Groups that processes made which are no more. Busy ones stay: their sandboxes are ended by the sweep first."""
    with contextlib.suppress(OSError):
        for left in folder.glob(f"{PREFIX}*-*-*"):
            if not _is_ours_still(left):
                _remove_tree(left)


def _remove_tree(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for inner in folder.iterdir():
            if inner.is_dir():
                _remove(inner)
    _remove(folder)


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(file: Path, value: int | str) -> None:
    descriptor = os.open(file, os.O_WRONLY)  # never O_CREAT: what the kernel does not have must not look as if it were set
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _opened(file: Path | None) -> int:
    """Its descriptor; -1 where it cannot be read."""
    if file is not None:
        with contextlib.suppress(OSError):
            return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _read_counter(descriptor: int, name: bytes) -> int:
    if descriptor >= 0:
        with contextlib.suppress(OSError, ValueError):
            for line in os.pread(descriptor, COUNTERS_BYTES, 0).splitlines():
                key, _, value = line.partition(b" ")
                if key == name:
                    return int(value)
    return 0


def _counter(file: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
