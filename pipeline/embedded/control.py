"""What the keeper says to its users: its greeting, and the state of the server whenever that changes.

keeper -> user   {"hello": {...}}     first line of every connection
                 {"status": {...}}    next, and after every change
                 {"others": n}        answer to "leave": n other users stay, so nothing will end
user -> keeper   {"leave": true}      I go; answered by "others", or by end of file after the server has ended
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from pipeline.embedded.lines import JsonObject


class State(StrEnum):
    """What the server of a data directory does."""

    STARTING = "starting"
    """It was started and does not answer yet."""
    LOADING = "loading"
    """It reads its data."""
    READY = "ready"
    """It serves."""
    BACKING_OFF = "backing_off"
    """It ended and is started again after a pause; `reason` says why."""
    STOPPING = "stopping"
    """It was told to end."""
    ENDED = "ended"
    """It has ended and stays so."""
    KEEPER_LOST = "keeper_lost"
    """Set by the user's side: the keeper was killed; another is being started, which starts the server from its append-only file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """The server, as its keeper sees it."""

    state: State
    pid: int | None = None
    """Of the server; None while there is none."""
    starts: int = 0
    """How many times this keeper started it."""
    reason: str = ""
    """Why it ended last, in words; empty when it never did."""
    was_ready: bool = False
    """Whether it ever served under this keeper."""
    cannot_start: bool = False
    """It ended by itself before it ever served: a fault that waiting does not mend. Being killed is none."""

    def to_message(self) -> dict[str, object]:
        """As it goes over the wire."""
        return {"status": asdict(self)}

    @classmethod
    def from_message(cls, fields: JsonObject) -> ServerStatus:
        """As it came over the wire; unknown fields are ignored."""
        pid: Any = fields["pid"]
        return cls(
            state=State(fields["state"]),
            pid=None if pid is None else int(pid),
            starts=int(fields["starts"]),
            reason=str(fields["reason"]),
            was_ready=bool(fields["was_ready"]),
            cannot_start=bool(fields.get("cannot_start", False)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a user learns on arrival."""

    keeper_pid: int
    socket: str
    """The server's Unix socket; the same for the life of the data directory on this machine."""
    appendfsync: str
    maxmemory_bytes: int

    def to_message(self) -> dict[str, object]:
        """As it goes over the wire."""
        return {"hello": asdict(self)}

    @classmethod
    def from_message(cls, fields: JsonObject) -> Greeting:
        """As it came over the wire; unknown fields are ignored."""
        return cls(
            keeper_pid=int(fields["keeper_pid"]),
            socket=str(fields["socket"]),
            appendfsync=str(fields["appendfsync"]),
            maxmemory_bytes=int(fields["maxmemory_bytes"]),
        )
