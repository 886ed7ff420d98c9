"""What a training process imports: connect to a run, feed prompts, take steps or single results, ack them.

connecting      connect, connect_blocking, Run
what to do      StepRequest, JobRequest, ValidationRequest, SamplingRequest, LimitsRequest, ChatRequest
what comes      Step, Group, Result, Job, Validation, Estimate, RunStatistics
batches         Batch, Rollout, Manifest, GRPO, LeaveOneOut, Overlong, as_tensors (more in `trainer_client.batches`)
other ranks     connect_reader, connect_reader_blocking, BodyReader
from outside    Awaiting, HeldGroup, HeldMember, ReportAnswer
weights         ServersToLoad, ServerToLoad
what goes wrong WaitTimeout, GroupsBroken, BodyMissing, BadTrajectory, ClientClosed, UpdateFailed, PauseHeld, PauseLost,
                ShadowedPackage, and those of `pipeline.errors`

async with connect(url, run="math-1") as run:
    run.feed(rows, epochs=2, shuffle_seed=7)
    async for step in run.steps(StepRequest(task="math", groups=8, n=8)):
        batch = await step.batch(advantage=GRPO(std=False), pack=65_536)
        for microbatch in batch.microbatches():
            train(microbatch)
        await step.ack()

What such a loop is set up with is loaded by the import; the rest (batches, validations, rewards from outside, weight updates, statistics)
when it is first asked for.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_client.shadowing import ShadowedPackage, refuse_shadows

refuse_shadows(Path(__file__).resolve().parent.parent)

from pipeline.requests import ChatRequest, JobRequest, LimitsRequest, SamplingRequest  # noqa: E402  # after the check, which says why it fails
from pipeline.step_request import StepRequest  # noqa: E402
from trainer_client.blocking import connect_blocking, connect_reader_blocking  # noqa: E402
from trainer_client.client import Run  # noqa: E402
from trainer_client.connecting import Connection, connect  # noqa: E402
from trainer_client.errors import BodyMissing, ClientClosed, ClientForked, GroupsBroken, UpdateFailed, WaitTimeout  # noqa: E402
from trainer_client.feed import Feed  # noqa: E402
from trainer_client.jobs import Job  # noqa: E402
from trainer_client.results import Result  # noqa: E402
from trainer_client.steps import Group, Step  # noqa: E402

if TYPE_CHECKING:
    from pipeline.inference_pool.pauses import PauseHeld, PauseLost
    from pipeline.scripts.reward_calls import ReportAnswer
    from pipeline.validation_request import ValidationRequest
    from trainer_client import batches as batches
    from trainer_client.batches import (
        GRPO,
        BadTrajectory,
        Batch,
        BodyReader,
        LeaveOneOut,
        Manifest,
        Overlong,
        Rollout,
        as_tensors,
        connect_reader,
    )
    from trainer_client.outside import Awaiting, HeldGroup, HeldMember
    from trainer_client.run_statistics import RunStatistics
    from trainer_client.servers_to_load import ServersToLoad, ServerToLoad
    from trainer_client.validation import Validation, ValidationGroup, ValidationMember
    from trainer_client.validation_numbers import Estimate

_WHEN_ASKED_FOR = {
    "pipeline.inference_pool.pauses": "PauseHeld PauseLost",
    "pipeline.scripts.reward_calls": "ReportAnswer",
    "pipeline.validation_request": "ValidationRequest",
    "trainer_client": "batches",
    "trainer_client.batches": "GRPO BadTrajectory Batch BodyReader LeaveOneOut Manifest Overlong Rollout as_tensors connect_reader",
    "trainer_client.outside": "Awaiting HeldGroup HeldMember",
    "trainer_client.run_statistics": "RunStatistics",
    "trainer_client.servers_to_load": "ServersToLoad ServerToLoad",
    "trainer_client.validation": "Validation ValidationGroup ValidationMember",
    "trainer_client.validation_numbers": "Estimate",
}
"""Names by the module that has them; the same as are imported above for type checkers."""
_MODULE_OF = {name: module for module, names in _WHEN_ASKED_FOR.items() for name in names.split()}

__all__ = [
    "GRPO",
    "Awaiting",
    "BadTrajectory",
    "Batch",
    "BodyMissing",
    "BodyReader",
    "ChatRequest",
    "ClientClosed",
    "ClientForked",
    "Connection",
    "Estimate",
    "Feed",
    "Group",
    "GroupsBroken",
    "HeldGroup",
    "HeldMember",
    "Job",
    "JobRequest",
    "LeaveOneOut",
    "LimitsRequest",
    "Manifest",
    "Overlong",
    "PauseHeld",
    "PauseLost",
    "ReportAnswer",
    "Result",
    "Rollout",
    "Run",
    "RunStatistics",
    "SamplingRequest",
    "ServerToLoad",
    "ServersToLoad",
    "ShadowedPackage",
    "Step",
    "StepRequest",
    "UpdateFailed",
    "Validation",
    "ValidationGroup",
    "ValidationMember",
    "ValidationRequest",
    "WaitTimeout",
    "as_tensors",
    "connect",
    "connect_blocking",
    "connect_reader",
    "connect_reader_blocking",
]

if not TYPE_CHECKING:  # a checker knows the names from above, and says what is none

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if module == __name__:
            return import_module(f"{module}.{name}")
        value = globals()[name] = getattr(import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
