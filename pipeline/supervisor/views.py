"""What the rules of the ledger look at: a run, its open steps, its groups. Plain records; `loading.py` fills them from Redis.

Nothing here has a clock: times are milliseconds of Redis, only compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.messages import Outcome
from pipeline.supervisor.staleness import Version
from pipeline.supervisor.step_spec import StepSpec


@dataclass(frozen=True, slots=True)
class Basis:
    """State of a run's ledger that a decision was made on; an action on any other is refused."""

    run: str
    incarnation: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """A step that wants groups."""

    index: int
    spec: StepSpec
    accepted: int
    """Groups that joined."""

    @property
    def wanting(self) -> int:
        """Groups it still wants."""
        return max(0, self.spec.target - self.accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """How one member of a group ended."""

    outcome: Outcome
    reward: float | None
    """None = none was given."""
    components: Mapping[str, float | None]
    reason: str = ""
    stop: str = ""
    sampled_tokens: int = 0
    total_tokens: int = 0
    more_tokens: int = 0
    """Sampled tokens that its trajectory does not have: of a job that was cut off, and of attempts that were lost."""
    first_version: str = ""
    last_version: str = ""

    @property
    def spent_tokens(self) -> int:
        """All that it sampled, as far as finished turns tell."""
        return self.sampled_tokens + self.more_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedGroup:
    """A group of which every member has ended, not accounted yet."""

    id: str
    incarnation: int
    want: int
    """Members it was launched with."""
    members: Mapping[int, Member]
    closed_ms: int
    spec: StepSpec
    """Of the step it was launched for."""
    prompt: str = ""
    """Id of the prompt that it sampled."""
    launched_by_ledger: bool = True
    """False: a client put it into the queue itself. It gets its verdict and its record, and joins no step."""
    redraws: int = 0
    """How often its prompt was dropped before."""
    given_up: str = ""
    """Why it was given up while in flight; empty = it was not."""
    parked: bool = False
    """It was found informative while no step had room."""
    launched_for: int | None = None
    """The step it was launched for."""
    place: int = 0
    """Of its prompt in the reserve: the order of launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlyingGroup:
    """How far a group in flight is."""

    id: str
    incarnation: int
    want: int
    launched_ms: int
    ended: int
    """Members that ended, however."""
    finished: int
    """Members that ended with something the policy did (`ok`, `model_failure`)."""
    begun: int
    """RUN attempts that were begun."""
    late_at_ms: int = 0
    """It is late from then on; 0 = never, its members were told so already, or deadlines stand still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run's ledger at one revision."""

    basis: Basis
    steps: tuple[OpenStep, ...] = ()
    """Open ones, lowest index first."""
    flying: int = 0
    """Groups in flight, those that closed and are not accounted included, those that were given up not."""
    reserve: int = 0
    """Prompts in the reserve."""
    prompts_ended: bool = False
    need_announced: bool = False
    paused: bool = False
    """Nothing of it is admitted."""
    is_behind: bool = False
    """Its trainer has not acked more records of its results than the bound allows."""
    shortage: str = ""
    """What was last said to keep it from having enough groups at work (`shortage.Shortage`); empty = nothing."""
    judged: int = 0
    """Groups that were judged lately."""
    informative: int = 0
    """How many of them were informative."""
    broken: int = 0
    """Groups in a row that infrastructure broke whole, up to the last that was accounted; counted anew by each incarnation."""
    broken_ms: int = 0
    """When the last of them was accounted."""
    cancelled_for: str = ""
    """Why the run was cancelled; empty = it was not."""
    is_open: bool = True
    flying_places: Mapping[str, int] = field(default_factory=dict)
    """Group in flight -> place of its prompt. Only read while a deterministic step is open."""
    reserve_place: int | None = None
    """Lowest place in the reserve; None = empty. Read as `flying_places`."""
    version: Version | None = None
    """The policy's current one; None = the trainer of this incarnation has not set it."""
    untrained: tuple[int, ...] = ()
    """Steps that were reached and whose update has not come. Known where a version is and a step drops what is stale."""
    has_deadlines: bool = False
    """A group was launched that has one."""
    now_ms: int = 0
    """When this was looked at, by the clock of Redis."""
    contact_ms: int = 0
    """The last sign of its trainer, by the same clock."""
    parked: tuple[ClosedGroup, ...] = field(default=())
    """Informative groups that no step had room for, longest waiting first."""
    unreadable_parked: Mapping[str, str] = field(default_factory=dict)
    """Parked groups whose keys are gone, or none of ours -> what is wrong."""
