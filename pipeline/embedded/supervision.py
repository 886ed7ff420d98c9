"""Keeps one server running: starts it, sees it become ready, starts it again when it ends, says why it is away.

A state machine without a loop of its own. Whoever owns it (the keeper, `rollstream redis serve`) waits for `fileno()` to become readable
and for `wake_at`, and calls `on_report` and `on_time`. States are those of `control.State`.

A server that ends is started again at once, then after 0.1, 0.2, 0.4 ... seconds up to a cap, until it has served for ten seconds in a row.
It is never given up while somebody wants it: the usual cause is a full disk, and space comes back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.embedded.control import ServerStatus, State
from pipeline.embedded.guard import Guard
from pipeline.embedded.lines import JsonObject
from pipeline.embedded.probe import Condition, Endpoint, server_condition

_FIRST_PROBE_S = 0.005
_LONGEST_PROBE_S = 0.1
_STABLE_S = 10.0
_FULL_DISK_BYTES = 1 << 20
"""Below this the reason names the disk. More than one write of a body may not fit much earlier; the log's tail tells then."""
_LOG_TAIL_BYTES = 4096
_LOG_TAIL_LINES = 6


def restart_pause_s(failures: int, cap_s: float) -> float:
    """The pause before the next start after so many ends in a row, in seconds."""
    if failures <= 1:
        return 0.0
    return min(cap_s, 0.1 * 2.0 ** min(failures - 2, 30))


def exit_in_words(code: int) -> str:
    """An exit status as a person would say it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"


class SupervisedServer:
    """The server of one data directory, behind its guard.

    Args:
        guard: runs the server; owned from here on.
        config: the text of the configuration, asked before each start.
        endpoint: where the server listens, asked before each probe (a port may be chosen anew at each start).
        data_dir: to tell of a full disk.
        log_path: the server's log, for the reason of an end.
        restart_cap_s: longest pause before a restart.
        on_change: told of every change of the status.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        config: Callable[[], str],
        endpoint: Callable[[], Endpoint],
        data_dir: Path,
        log_path: Path,
        restart_cap_s: float,
        on_change: Callable[[ServerStatus], None],
    ) -> None:
        self._guard = guard
        self._config = config
        self._endpoint = endpoint
        self._data_dir = data_dir
        self._log_path = log_path
        self._restart_cap_s = restart_cap_s
        self._on_change = on_change
        self._failures = 0
        self._ready_at = 0.0
        self._probe_pause_s = _FIRST_PROBE_S
        self.wake_at: float | None = None
        """When `on_time` wants to be called next, on the monotonic clock."""
        self.status = ServerStatus(state=State.STARTING)

    def fileno(self) -> int:
        """Readable when `on_report` has something to read."""
        return self._guard.fileno()

    @property
    def has_ended(self) -> bool:
        """Nothing of it runs any more, and nothing will."""
        return self.status.state is State.ENDED

    def start(self) -> None:
        """Orders a start."""
        self._guard.start_server(self._config())
        self._probe_pause_s = _FIRST_PROBE_S
        self.wake_at = None
        self._become(replace(self.status, state=State.STARTING, pid=None, starts=self.status.starts + 1))

    def stop(self) -> None:
        """Ends the server and the guard; `has_ended` turns true when both are gone."""
        if self.status.state in (State.STOPPING, State.ENDED):
            return
        self.wake_at = None
        self._guard.stop()
        self._become(replace(self.status, state=State.STOPPING))

    def on_report(self) -> None:
        """Reads what the guard reports."""
        reports = self._guard.reports()
        if reports is None:
            self._on_guard_gone()
            return
        for report in reports:
            self._on_one(report)

    def on_time(self) -> None:
        """Does what was due at `wake_at`."""
        match self.status.state:
            case State.BACKING_OFF:
                self.start()
            case State.STARTING | State.LOADING if self.status.pid is not None:
                self._probe(self.status.pid)
            case _:
                self.wake_at = None

    def _on_one(self, report: JsonObject) -> None:
        if "pid" in report:
            self.wake_at = time.monotonic() + self._probe_pause_s
            self.status = replace(self.status, pid=int(report["pid"]))  # no change of state: told with the next one
        elif "exit" in report:
            code = int(report["exit"])
            self._on_exit(exit_in_words(code), was_killed=-code in (signal.SIGKILL, signal.SIGTERM))
        else:
            self._on_exit(f"could not be started: {report['failed']}", was_killed=False)

    def _probe(self, pid: int) -> None:
        match server_condition(self._endpoint(), pid):
            case Condition.READY:
                self.wake_at = None
                self._ready_at = time.monotonic()
                self._become(replace(self.status, state=State.READY, was_ready=True, cannot_start=False))
            case Condition.LOADING:
                self.wake_at = time.monotonic() + _LONGEST_PROBE_S
                self._become(replace(self.status, state=State.LOADING))
            case Condition.DOWN:
                self._probe_pause_s = min(_LONGEST_PROBE_S, self._probe_pause_s * 1.2)
                self.wake_at = time.monotonic() + self._probe_pause_s

    def _on_exit(self, how: str, *, was_killed: bool) -> None:
        if self.status.state is State.STOPPING:
            self.status = replace(self.status, pid=None)
            return
        if self.status.state is State.READY and time.monotonic() - self._ready_at >= _STABLE_S:
            self._failures = 0
        self._failures += 1
        pause_s = restart_pause_s(self._failures, self._restart_cap_s)
        cannot_start = not self.status.was_ready and not was_killed
        self.status = replace(self.status, pid=None, reason=self._reason(how), cannot_start=cannot_start)
        if pause_s == 0:
            self.start()
            return
        self.wake_at = time.monotonic() + pause_s
        self._become(replace(self.status, state=State.BACKING_OFF))

    def _on_guard_gone(self) -> None:
        self._guard.reap()
        self.wake_at = None
        if self.status.state is not State.STOPPING:
            self._end_orphan()
            self.status = replace(self.status, reason="the guard process of the server was killed")
        self._become(replace(self.status, state=State.ENDED, pid=None))

    def _end_orphan(self) -> None:
        """Ends a server whose guard was killed, where no parent-death signal did. Its own word for its pid makes the signal safe."""
        pid = self.status.pid
        if pid is not None and server_condition(self._endpoint(), pid) is not Condition.DOWN:
            with contextlib.suppress(ProcessLookupError):  # it went meanwhile
                os.kill(pid, signal.SIGTERM)

    def _reason(self, how: str) -> str:
        parts = [f"the server ended ({how})"]
        free_bytes = shutil.disk_usage(self._data_dir).free
        if free_bytes < _FULL_DISK_BYTES:
            parts.append(f"the disk of {self._data_dir} is full ({free_bytes:,} bytes left): free some space, the server is started again")
        parts.append(f"its log {self._log_path} ends with:\n{log_tail(self._log_path)}")
        return "; ".join(parts)

    def _become(self, status: ServerStatus) -> None:
        changed = status != self.status
        self.status = status
        if changed:
            self._on_change(status)


def log_tail(path: Path) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])


def rotate_log(path: Path, keep: int = 3) -> None:
    """Moves `x.log` to `x.log.1` and older ones up, dropping what exceeds `keep`; an absent or empty log stays."""
    try:
        if path.stat().st_size == 0:
            return
    except FileNotFoundError:
        return
    for number in range(keep, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)
