"""What goes into the pool and comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import InvalidRequest
from pipeline.inference_pool.labels import AllowedLabels

ControlledBy = Literal["ops", "trainer"]
"""`ops`: always there; `trainer`: shares its accelerators with the trainer, and is away while that trains."""
NoServer = Literal["none", "down", "unsynced", "draining", "avoided"]
"""Why no server was assigned. `none`: the run has none of that model; `avoided`: those left are the ones that the asker avoids."""
BeginRefusal = Literal["paused", "gone", "down", "unsynced", "crowded"]
"""Why a call may not begin. `gone`: the server left the run, or the assignment ran out; `crowded`: other servers have much less to do."""
Standing = Literal["up", "draining", "down", "unsynced"]


class ServerTaken(InvalidRequest):
    """An address already holds the policy of another run, or stands otherwise in this one.

    Args:
        owner: a run that has it.
        is_shared: whether that run would share it, or has it as shared.
    """

    def __init__(self, url: str, run: str, owner: str, *, is_shared: bool) -> None:
        take = f"rollstream llm drop --run {owner} {url}"
        if owner == run:
            has = "as shared" if is_shared else "as its own"
            what = f"run {run} has server {url} {has} already, which giving it again does not change. Take it from the run first ({take})"
        else:
            how = "give it as shared, too" if is_shared else "if its weights never change, both may have it as shared"
            what = (
                f"server {url} cannot be given to run {run}: run {owner} has it. Take it from there ({take}), "
                f"or {how} (rollstream llm add --shared)"
            )
        super().__init__(what, field="servers")
        self.url = url
        self.owner = owner


@dataclass(frozen=True, slots=True)
class Server:
    """An inference server as somebody gives it to a run."""

    url: str
    """`http://host:port` or `unix:/path.sock`."""
    model: str = ""
    """Name of the model at the server; empty = its only one."""
    version: str = ""
    """Label of the weights it holds, if whoever attaches it knows; what the server reports counts for more."""
    control: ControlledBy = "ops"
    shared: bool = False
    """A frozen model that several runs may have: no gate, no updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One attempt of a job that wants a server."""

    job: str
    attempt: int
    model: str = ""
    """Empty = any."""
    group: str = ""
    """Members of one group prefer one server; empty = none."""
    pin: int | None = None
    """Number of the one server it may have, among those of the model sorted by address (modulo their count)."""

    @property
    def holder(self) -> str:
        return f"{self.job}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attempt's lease on a server."""

    run: str
    server: str
    version: str
    """Label of the server's weights, as the pool knows it."""
    holder: str


@dataclass(frozen=True, slots=True)
class Call:
    """A model call of an assignment."""

    assignment: Assignment
    id: str
    """Unique a call and attempt, without spaces: the one by which it is aborted at the server."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that may go out."""

    version: str
    """Label of the server's weights."""
    allowed: AllowedLabels
    """What the run allowed when it began."""


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended, whatever came."""

    call: Call
    rerouted: bool = False
    """It went to another server than the job's call before."""
    lost_tokens: int = 0
    """Tokens of its prefix that the server before had seen and this one had not."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What tells that waiting may be over."""

    rev: int
    """Grows with each change of the run's servers or pause."""
    is_paused: bool
    ends_calls: bool = False
    """The pause waits until the calls in flight have ended: no `keep`, and the engines are not away yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Who keeps the calls of a run from beginning."""

    holder: str
    why: str
    """`update`, `leaving` or `away`: see `pauses.PauseWhy`."""
    mode: str
    to: str
    """Label to come; empty = none."""
    since_ms: int
    until_ms: int
    """The holder's lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the pool knows of one server of a run."""

    url: str
    model: str
    control: ControlledBy
    kind: str
    """`vllm` or `sglang`; empty before the first look."""
    shared: bool
    standing: Standing
    """`down` goes before `unsynced`, and both before `draining`."""
    draining: bool
    version: str
    """Label of its weights; empty while unknown."""
    since_ms: int
    """Since when it stands as it does; when it is down, since the first look that failed."""
    why: str
    """What the last failed look met."""
    engine_paused: bool
    started: str
    running: int
    waiting: int
    kv_used: float
    """Share of the KV cache, 0 to 1; -1 = it does not say."""
    looked_ms: int
    """When somebody last looked; 0 = never."""
    seen_ms: int
    """When it last answered a look; 0 = never."""
    jobs: int
    """Live assignments."""
    calls: int
    """Calls in flight, as workers say."""
    to_abort: int
    """Calls of processes that are gone, to be aborted there."""

    @property
    def is_usable(self) -> bool:
        """Whether it gets new jobs."""
        return self.standing == "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """All that the pool knows of a run."""

    run: str
    now_ms: int
    """The clock of Redis, which all other times are by."""
    allowed: AllowedLabels
    pause: Pause | None
    """Also one that has lapsed: its holder died, and the next update mends what it left."""
    rerouted: int
    lost_tokens: int
    aborted: int
    servers: tuple[ServerState, ...]
    """By address."""

    @property
    def is_paused(self) -> bool:
        """Whether no call begins."""
        return self.pause is not None and self.pause.until_ms > self.now_ms

    @property
    def is_away(self) -> bool:
        """Whether its engines are away: nothing is judged."""
        return self.is_paused and self.pause is not None and self.pause.why == "away"
