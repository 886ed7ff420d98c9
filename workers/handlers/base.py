"""What a task must bring: how its environment is made (INIT), how the agent acts in it (RUN), how the end is judged (EVAL).

A handler is found by the name in the job (`task`): built in, or from the entry-point group `rollstream.handlers`. It knows nothing of
Redis, queues or attempts: a context gives it the job, the gate and the tools of its stage. It raises what is natural;
`workers/stages/failures.py` turns that into data, and the handler's own hook for the stage may then shape it.

    class Chess(TaskHandler):
        name = "chess"
        def tools(self, spec): ...
        async def evaluate(self, context): return Grade(reward=...)

One handler object serves many jobs at once: it keeps nothing of a job in itself. `open` and `close` bracket its life in a process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from pipeline.blobs import BlobStoreAway
from pipeline.failpoints import failpoint
from pipeline.messages import Blob, Failure, Grade, JobSpec, Json, Outcome, Stage, StopReason, Trajectory
from workers.agent.limits import ActiveTime
from workers.agent.template_check import TemplateChecks
from workers.agent.trajectory import TurnDelta
from workers.handlers.submission import submitted
from workers.handlers.task_data import Layout
from workers.handlers.task_options import Option, check_options
from workers.llm.backend import Model
from workers.sandbox.base import Sandbox, SandboxProvider
from workers.sandbox.errors import SandboxError, SandboxGone
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec
from workers.tools.base import ToolUse


class KeepBlob(Protocol):
    """How an attempt keeps an array."""

    async def __call__(self, name: str, array: NDArray[Any], *, part: int | None = None) -> Blob:
        """Keeps it, and returns what a segment says of it.

        Args:
            name: what it is, the same for all of its kind.
            part: tells apart several of one name, such as the segment's index.

        Raises:
            BlobError: there is no store here, it is full, or the array is too large.
        """
        ...


async def keeps_none(name: str, array: NDArray[Any], *, part: int | None = None) -> Blob:
    """Where nothing is kept beside the record."""
    raise BlobStoreAway(f"blob {name!r} of {array.nbytes:,} bytes: nothing is kept here beside the record")


BROKEN_BY_ITS_GUEST = ("SandboxGone", "SessionStartError", "ExecTimeout")
"""What a guest can do to its sandbox: end it, take the programs away that sessions are made of, run what cannot be ended.
Infrastructure can do the same, but hardly to two sandboxes of one job after another."""


class NoSandboxes(LookupError):
    """This process has no sandboxes, and the task needs one: not the job's fault, another worker has some."""


class EnvironmentGone(SandboxError):
    """What INIT made is not there when RUN wants it: its node was restarted or cleaned. Made again; nobody's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What INIT made, as it travels to RUN and EVAL."""

    sandbox: Mapping[str, str] = field(default_factory=dict)
    """The handle of a parked sandbox as a map; empty = the task has none."""
    data: Json = field(default_factory=dict)
    """The handler's own notes."""
    used: Json = field(default_factory=dict)
    """What INIT used of sandboxes, as `SandboxUse` maps it; the stage writes it."""

    @property
    def is_local(self) -> bool:
        """Whether only the node that made it has it."""
        return bool(self.sandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A hook's word that the job ends here, and how."""

    outcome: Outcome
    stop: StopReason
    reason: str
    reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """What every stage has."""

    spec: JobSpec
    owner: SandboxOwner
    gate: Callable[[], None]
    """Passed before each call that costs; raises when the job was cancelled or its lease is lost."""
    progress: Callable[[float], None]
    """Promises the next sign of life within so many seconds."""
    retries: int
    """Attempts of this job that failed before."""
    last_failure: str = ""
    """For the hook of a failure: `<boundary>: <kind>` of what an earlier attempt failed of in this stage; empty when it is the first."""
    sandboxes: SandboxProvider | None
    """The sandboxes of this node; None in a process that has none."""

    def provider(self) -> SandboxProvider:
        """The sandboxes of this node.

        Raises:
            NoSandboxes: this process has none.
        """
        if self.sandboxes is None:
            raise NoSandboxes(f"task {self.spec.template.task!r} needs a sandbox and there is no sandbox backend here")
        return self.sandboxes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(StageContext):
    """What RUN has."""

    environment: Environment
    backend: Model
    """The model server of this job."""
    journal: Callable[[TurnDelta], Awaitable[None]]
    """Keeps a finished turn."""
    active: ActiveTime
    """The clock of the job's active time."""
    templates: TemplateChecks = field(default_factory=TemplateChecks)
    """What this process found of the servers' chat templates."""
    keep_blob: KeepBlob = field(default=keeps_none)
    """Keeps an array beside the record, as long as it: for a segment's `blobs`. Whatever an attempt kept goes with it when it fails."""
    used_tool: Callable[[ToolUse], None] | None = None
    """Told of each tool call that has ended; None = nobody asks."""

    async def sandbox(self) -> Sandbox:
        """Takes over the sandbox that INIT made.

        Raises:
            EnvironmentGone: it is not there any more.
        """
        try:
            sandbox = await self.provider().attach(SandboxHandle.from_map(self.environment.sandbox), self.owner)
        except SandboxGone as error:
            raise EnvironmentGone(str(error)) from error
        failpoint("sandbox_attach")
        return sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalContext(StageContext):
    """What EVAL has."""

    environment: Environment
    trajectory: Trajectory
    attach: Callable[[str, bytes], Awaitable[None]]
    """Keeps a large by-product beside the grade and as long, by a name of lower-case letters (`log`); of two of one name the last. Compress
    it: all of a job together may have `max_body_bytes` of the queue, else it raises `BodyTooLarge`, which has that bound."""


class TaskHandler(ABC):
    """One kind of task."""

    name: str
    """What jobs say in `task`."""
    about: str = ""
    """One line for people: what is asked and how it is judged."""
    layouts: Sequence[Layout[Any]] = ()
    """How rows may be written, our own layout first; empty = the handler reads `prompt.data` itself."""
    samples: Sequence[Traversable] = ()
    """Files of problems in this package, in one of the layouts."""
    options: Sequence[Option[Any]] | None = None
    """What requests may say in `options`; another name or kind is refused. None = the handler declares nothing, and takes anything."""
    config: Path | None = None
    """The `rollstream.toml` of this process, set before `open`; None = the one in the current folder, when there is one."""

    async def open(self) -> None:  # noqa: B027  # most handlers have nothing to prepare
        """Prepares what all jobs of this process share (a grader's processes)."""

    async def close(self) -> None:  # noqa: B027
        """Gives it back."""

    def check_options(self, said: Json) -> None:
        """Refuses options that the task does not take. Asked by commands before they begin, and by INIT before it makes anything.
        Default: what `options` declares; a handler with options that do not go together says so here.

        Raises:
            InvalidRequest: the job ends with it, and is not tried again.
        """
        check_options(self.name, self.options, said)

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        """The sandbox the task needs; None = none."""
        return None

    async def init(self, context: StageContext) -> Environment:
        """Makes the environment. Default: the sandbox of `sandbox_spec`, parked for RUN."""
        wanted = self.sandbox_spec(context.spec)
        if wanted is None:
            return Environment()
        sandbox = await context.provider().start(wanted, context.owner)
        failpoint("sandbox_start")
        try:
            await self.prepare(context, sandbox)
            handle = await sandbox.park()
            failpoint("sandbox_park")
            return Environment(sandbox=handle.to_map())
        except BaseException:
            await sandbox.kill()
            raise

    async def prepare(self, context: StageContext, sandbox: Sandbox) -> None:  # noqa: B027
        """Fills a new sandbox: files, packages, checks."""

    @abstractmethod
    async def run(self, context: RunContext) -> Trajectory:
        """Lets the agent act. Most handlers take `agent_handler.AgentHandler`'s."""

    @abstractmethod
    async def evaluate(self, context: EvalContext) -> Grade:
        """Judges what came out: `trajectory.answer` and `trajectory.extra`, so that it can be done again without RUN.

        Raises:
            GraderError: the grader broke. If it grades `gold`, the answer broke it: a 0 with its reason; else it is infrastructure's.
        """

    def gold(self, spec: JobSpec) -> Trajectory | None:
        """What must score 1: the reference solution as `submission.submitted` makes it; None = the row holds none."""
        return None

    def empty(self, spec: JobSpec) -> Trajectory:
        """What must score 0. Default: no answer at all."""
        return submitted("")

    def init_failed(self, context: StageContext, failure: Failure) -> Failure | Ended:
        """Shapes a failure of INIT; the default takes it as it is."""
        return failure

    def run_failed(self, context: StageContext, failure: Failure) -> Failure | Ended:
        """Shapes a failure of RUN. Default: a sandbox that breaks under the agent twice is the model's doing; other failures before do not
        count, they say nothing of the model."""
        if failure.kind in BROKEN_BY_ITS_GUEST and context.last_failure in {f"{failure.boundary}: {kind}" for kind in BROKEN_BY_ITS_GUEST}:
            return Ended(outcome=Outcome.MODEL_FAILURE, stop=StopReason.SANDBOX_BROKEN, reason=failure.message, reward=0.0)
        return failure

    def eval_failed(self, context: StageContext, failure: Failure) -> Failure | Ended:
        """Shapes a failure of EVAL; the default takes it as it is."""
        return failure


def failed_hook(handler: TaskHandler, stage: Stage) -> Callable[[StageContext, Failure], Failure | Ended]:
    """The hook of one stage."""
    return {Stage.INIT: handler.init_failed, Stage.RUN: handler.run_failed, Stage.EVAL: handler.eval_failed}[stage]
