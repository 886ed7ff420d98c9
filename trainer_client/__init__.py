"""What a training process imports: connect to a run, feed prompts, take steps or single results, ack them.

connecting      connect, connect_blocking, Run
what to do      StepRequest, JobRequest, ValidationRequest, SamplingRequest, LimitsRequest, ChatRequest
what comes      Step, Group, Result, Job, Validation, Estimate, RunStatistics
from outside    Awaiting, HeldGroup, HeldMember, ReportAnswer
weights         ServersToLoad, ServerToLoad
what goes wrong WaitTimeout, BodyMissing, ClientClosed, UpdateFailed, PauseHeld, PauseLost, ShadowedPackage,
                and those of `pipeline.errors`

async with connect(url, run="math-1") as run:
    run.feed(rows, epochs=2, shuffle_seed=7)
    async for step in run.steps(StepRequest(task="math", groups=8, n=8)):
        for group in step.groups:
            train(await group.trajectories(), group.rewards)
        await step.ack()
"""

from pathlib import Path

from trainer_client.shadowing import ShadowedPackage, refuse_shadows

refuse_shadows(Path(__file__).resolve().parent.parent)

from pipeline.inference_pool.pauses import PauseHeld, PauseLost  # noqa: E402  # after the check, which says why it fails
from pipeline.requests import ChatRequest, JobRequest, LimitsRequest, SamplingRequest  # noqa: E402
from pipeline.step_request import StepRequest  # noqa: E402
from pipeline.validation_request import ValidationRequest  # noqa: E402
from trainer_client.blocking import connect_blocking  # noqa: E402
from trainer_client.client import Run  # noqa: E402
from trainer_client.connecting import Connection, connect  # noqa: E402
from trainer_client.errors import BodyMissing, ClientClosed, UpdateFailed, WaitTimeout  # noqa: E402
from trainer_client.feed import Feed  # noqa: E402
from trainer_client.jobs import Job  # noqa: E402
from trainer_client.outside import Awaiting, HeldGroup, HeldMember, ReportAnswer  # noqa: E402
from trainer_client.results import Result  # noqa: E402
from trainer_client.run_statistics import RunStatistics  # noqa: E402
from trainer_client.servers_to_load import ServersToLoad, ServerToLoad  # noqa: E402
from trainer_client.steps import Group, Step  # noqa: E402
from trainer_client.validation import Validation, ValidationGroup, ValidationMember  # noqa: E402
from trainer_client.validation_numbers import Estimate  # noqa: E402

__all__ = [
    "Awaiting",
    "BodyMissing",
    "ChatRequest",
    "ClientClosed",
    "Connection",
    "Estimate",
    "Feed",
    "Group",
    "HeldGroup",
    "HeldMember",
    "Job",
    "JobRequest",
    "LimitsRequest",
    "PauseHeld",
    "PauseLost",
    "ReportAnswer",
    "Result",
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
    "connect",
    "connect_blocking",
]
