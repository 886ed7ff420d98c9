"""How a job ends that did not go as planned: whose doing it was decides, and a hook of the task may say so."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pipeline import codec
from pipeline.errors import LeaseLost
from pipeline.messages import Failure, Grade, Outcome, Recovery, Stage, StopReason, Trajectory
from pipeline.redis_client import ask, command_client
from pipeline.scripts import JournalTurn
from pipeline.settings import QueueSettings
from pipeline.testing import ManualWorker, PrivateServer, a_template, a_trajectory, wait_until
from tests.integration.stages.fleet import TASK, Fleet, Play, a_delta
from workers.graders.errors import GraderError
from workers.handlers.base import Ended, Environment, EnvironmentGone, EvalContext, RunContext, StageContext
from workers.sandbox.errors import ExecTimeout, SandboxError, SandboxGone, SandboxStartError, SessionStartError, StaleAttempt
from workers.sandbox.spec import SandboxSpec
from workers.stages.failures import the_one_error

MakeServer = Callable[..., PrivateServer]
pytestmark = pytest.mark.one_server


def failing(*errors: Exception) -> Callable[[RunContext], Awaitable[Trajectory]]:
    """RUN that fails of one after the other, then does well."""
    left = list(errors)

    async def run(context: RunContext) -> Trajectory:
        if left:
            raise left.pop(0)
        return a_trajectory()

    return run


BROKEN_AGAIN = [SandboxGone("s2", "killed"), SessionStartError("shell", "/bin/bash: not found"), ExecTimeout("shell", 1.0, b"", b"")]


@pytest.mark.parametrize("again", BROKEN_AGAIN, ids=lambda error: type(error).__name__)
async def test_a_sandbox_that_breaks_under_the_agent_twice_is_the_models_doing(fleet: Fleet, again: SandboxError) -> None:
    """A model that removed bash ended as a failure of infrastructure, without a reward: a way out of a task that it cannot solve."""
    (job,) = await fleet.add("job")
    fleet.start(play=Play(on_run=failing(SandboxGone("s1", "killed"), again)))

    record = await fleet.result()

    assert (record["out"], record["rew"], record["stop"]) == ("model_failure", "0.0", "sandbox_broken")
    h = await fleet.audit.job(job)
    assert (h["failed"], h["lost"]) == ("1", "0")
    assert int(h["att"]) == 4, "the second attempt began in INIT, with a sandbox of its own"


@pytest.mark.parametrize("before", [SandboxStartError("process", "no space left"), ValueError("flaky"), TimeoutError("slow")], ids=repr)
async def test_a_sandbox_that_breaks_after_another_failure_is_not_yet_the_models_doing(fleet: Fleet, before: Exception) -> None:
    """Promise 7: a failure of infrastructure is never a reward of 0. Any failure before, of INIT even, made the first break of a
    sandbox count as the second."""
    await fleet.add("job", max_failed=3)
    fleet.start(play=Play(on_run=failing(before, SandboxGone("s1", "killed"))))

    record = await fleet.result()

    assert (record["out"], record["rew"]) == ("ok", "1.0")


async def test_an_environment_that_is_gone_is_a_loss_and_made_again(fleet: Fleet) -> None:
    made: list[int] = []

    async def init(context: StageContext) -> Environment:
        made.append(context.spec.attempt)
        return Environment()

    (job,) = await fleet.add("job", max_failed=0)
    fleet.start(play=Play(on_init=init, on_run=failing(EnvironmentGone("its node was wiped"))))

    record = await fleet.result()

    h = await fleet.audit.job(job)
    assert (record["out"], h["failed"], h["lost"], made) == ("ok", "0", "1", [1, 3])


async def test_an_attempt_that_is_not_the_last_drops_its_work(fleet: Fleet) -> None:
    """The sandbox says so before Redis does: a later attempt has been there."""
    (job,) = await fleet.add("job")
    began = asyncio.Event()

    async def run(context: RunContext) -> Trajectory:
        if began.is_set():
            return a_trajectory()
        began.set()
        await ask(fleet.client, "HINCRBY", fleet.keys.job(job), "att", 1)
        raise StaleAttempt("s1", context.spec.attempt, context.spec.attempt + 1)

    fleet.start(Stage.INIT, Stage.EVAL)
    fleet.start(Stage.RUN, play=Play(on_run=run))
    await began.wait()

    record = await fleet.result()  # by whoever has the later attempt: here the lease of it runs out

    h = await fleet.audit.job(job)
    assert (record["out"], h["failed"]) == ("ok", "0")


async def test_a_grader_that_fails_is_asked_again_and_is_then_infrastructure(fleet: Fleet) -> None:
    asked: list[int] = []

    async def evaluate(context: EvalContext) -> Grade:
        asked.append(context.spec.attempt)
        raise GraderError("it hangs", grader="play/1")

    await fleet.add("job", max_failed=2)
    fleet.start(play=Play(on_evaluate=evaluate))

    record = await fleet.result()

    assert (record["out"], record["rew"], len(asked)) == ("infra_failure", "", 3)
    assert "grader: GraderError" in record["why"]
    assert (await fleet.trajectory(record)).answer == a_trajectory().answer, "what the agent did is kept for those who look"


SHAPES: dict[str, tuple[object, tuple[str, str, str]]] = {
    "as it is": (None, ("infra_failure", "", "")),
    "the model's doing": (
        Ended(outcome=Outcome.MODEL_FAILURE, stop=StopReason.SANDBOX_BROKEN, reason="fork bomb", reward=0.0),
        ("model_failure", "0.0", "sandbox_broken"),
    ),
    "the model's doing, without a word on the reward": (
        Ended(outcome=Outcome.MODEL_FAILURE, stop=StopReason.GRADER_BROKEN, reason="endless"),
        ("model_failure", "0.0", "grader_broken"),
    ),
    "infrastructure with a reward": (
        Ended(outcome=Outcome.INFRA_FAILURE, stop=StopReason.LOST, reason="no", reward=0.0),
        ("infra_failure", "", "lost"),
    ),
    "ok with a reward": (Ended(outcome=Outcome.OK, stop=StopReason.FINISHED, reason="", reward=0.25), ("ok", "0.25", "finished")),
    "ok without one": (Ended(outcome=Outcome.OK, stop=StopReason.FINISHED, reason="fine"), ("infra_failure", "", "")),
    "a reward of NaN": (
        Ended(outcome=Outcome.MODEL_FAILURE, stop=StopReason.STUCK, reason="", reward=math.nan),
        ("infra_failure", "", ""),
    ),
    "a reason that is none": (
        Ended(outcome=Outcome.MODEL_FAILURE, stop=StopReason.STUCK, reason=cast(str, None), reward=0.0),
        ("infra_failure", "", ""),
    ),
    "not retryable": ("dead", ("infra_failure", "", "")),
    "nothing": ("nothing", ("infra_failure", "", "")),
    "an error of its own": ("raises", ("infra_failure", "", "")),
}


@pytest.mark.parametrize("stage", ["init", *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("run", "eval"))])
async def test_a_hook_shapes_the_failures_of_its_stage(fleet: Fleet, stage: str) -> None:
    shapes = list(SHAPES)

    async def fails(context: StageContext) -> object:
        raise ValueError("it broke")

    def hook(context: StageContext, failure: Failure) -> object:
        shape = SHAPES[shapes[int(context.spec.prompt.id)]][0]
        if shape == "raises":
            raise KeyError("a bug of the hook")
        return {None: failure, "dead": replace(failure, retryable=False), "nothing": None}.get(cast(str, shape), shape)

    play = Play()
    setattr(play, "on_evaluate" if stage == "eval" else f"on_{stage}", fails)
    setattr(play, f"on_{stage}_failed", hook)
    jobs = await fleet.add(*map(str, range(len(shapes))), max_failed=1)
    fleet.start(play=play, slots=len(shapes))

    results = await fleet.results(len(jobs))

    for shape, job in zip(shapes, jobs, strict=True):
        record = results[job]
        assert (record["out"], record["rew"], record["stop"]) == SHAPES[shape][1], shape
    for shape in ("as it is", "not retryable", "nothing", "an error of its own"):
        assert results[jobs[shapes.index(shape)]]["why"] == "handler: ValueError: it broke", shape
    assert (await fleet.audit.job(jobs[shapes.index("not retryable")]))["failed"] == "0"
    assert await fleet.audit.all_ended("run1", fleet.units) == []


async def test_a_worker_without_sandboxes_leaves_jobs_that_need_one_to_others(fleet: Fleet) -> None:
    """It was a failure of the job: a worker that was started wrong turned every job into a dead letter, as fast as it could."""

    class NeedsOne(Play):
        def sandbox_spec(self, spec: object) -> SandboxSpec:
            return SandboxSpec()

        async def init(self, context: StageContext) -> Environment:
            context.provider()
            return Environment()

    (job,) = await fleet.add("job")
    fleet.start(Stage.INIT, play=NeedsOne())

    async def handed_back() -> bool:
        h = await fleet.audit.job(job)
        return int(h["att"]) >= 1 and h["st"] == "ready"

    await wait_until(handed_back, "it was handed back")
    fleet.start(node="fit")

    record = await fleet.result()
    assert (record["out"], (await fleet.audit.job(job))["failed"]) == ("ok", "0")


async def test_a_deadline_while_the_agent_acts_keeps_what_it_did(fleet: Fleet) -> None:
    """The wall deadline is nobody's failure: the partial trajectory is kept with its figures, and there is no reward."""

    async def slow(context: RunContext) -> Trajectory:
        await context.journal(a_delta(0))
        await asyncio.Event().wait()
        raise AssertionError

    await fleet.add("job", template=a_template(task=TASK, wall_s=1.0))
    fleet.start(play=Play(on_run=slow))

    record = await fleet.result(timeout_s=15)

    assert (record["out"], record["why"], record["rew"], record["stop"]) == ("expired", "deadline", "", "deadline")
    kept = await fleet.trajectory(record)
    assert (kept.stop, len(kept.turns)) == (StopReason.DEADLINE, 1)
    assert (record["turns"], record["sampled"], record["total"], record["v0"]) == ("1", "3", "8", "1.0")
    assert record["segs"] == "8/3"
    assert record["counts"].startswith("calls:0 errors:0 nll:")
    assert len(record["began"].split()) == 2, "it came to RUN, and not to EVAL"


async def test_a_deadline_before_the_first_turn_keeps_nothing(fleet: Fleet) -> None:
    async def slow(context: RunContext) -> Trajectory:
        await asyncio.Event().wait()
        raise AssertionError

    await fleet.add("job", template=a_template(task=TASK, wall_s=0.5))
    fleet.start(play=Play(on_run=slow))

    record = await fleet.result(timeout_s=15)

    assert (record["out"], record["why"], record["ra"]) == ("expired", "deadline", "0")


async def lost_with_a_journal(fleet: Fleet, *bodies: bytes) -> str:
    """A job whose RUN worker died with these turns in the journal; it waits for EVAL."""
    (job,) = await fleet.add("job", template=a_template(task=TASK, recovery=Recovery.SALVAGE_PARTIAL, max_failed=0))
    fleet.start(Stage.INIT)

    async def waits_for_run() -> bool:
        return (await fleet.audit.job(job)).get("stage") == "run"

    await wait_until(waits_for_run, "INIT is done")
    worker = ManualWorker(fleet.scripts, Stage.RUN, "killed")
    (held,) = await worker.take()
    turns = [JournalTurn(held.job, held.attempt, index, body) for index, body in enumerate(bodies)]
    assert await fleet.scripts.journal(turns, ttl_ms=60_000) == ["1"] * len(bodies)
    await ask(fleet.client, "HSET", fleet.keys.key("janitor"), "quiet_until", 0)
    assert await worker.recover("idle", held) == ["salvaged"]
    return job


async def test_the_turns_of_a_lost_attempt_are_graded(fleet: Fleet) -> None:
    graded: list[Trajectory] = []

    async def evaluate(context: EvalContext) -> Grade:
        graded.append(context.trajectory)
        return Grade(reward=0.5)

    await lost_with_a_journal(fleet, codec.encode(a_delta(0)))
    fleet.start(Stage.EVAL, play=Play(on_evaluate=evaluate))

    record = await fleet.result()

    assert (record["out"], record["rew"], record["stop"], record["turns"]) == ("ok", "0.5", "lost", "1")
    assert graded[0].answer == "\\boxed{4}"
    kept = await fleet.trajectory(record)
    assert (kept.stop, kept.answer, kept.turns) == (StopReason.LOST, graded[0].answer, graded[0].turns)


TURN = a_delta(0)
PART = TURN.segments[0]
JUNK: dict[str, list[bytes]] = {
    "no msgpack": [b"\x00\xc1"],
    "another record": [codec.encode(a_template())],
    "a turn that is missing": [codec.encode(a_delta(1))],
    "arrays of different lengths": [codec.encode(replace(TURN, segments=(replace(PART, sampled_mask=PART.loss_mask[:3]),)))],
    "a turn in a segment that is not there": [codec.encode(replace(TURN, turns=(replace(TURN.turns[0], segment=7),)))],
    "a part that continues nothing": [codec.encode(replace(TURN, segments=(replace(PART, segment=5),)))],
    "twice the same": [codec.encode(TURN), codec.encode(TURN)],
}


@pytest.mark.parametrize("junk", list(JUNK))
async def test_a_journal_that_adds_up_to_nothing_is_a_dead_letter(fleet: Fleet, junk: str) -> None:
    """It could add up to a trajectory with masks of another length than its tokens, which went to the trainer."""
    await lost_with_a_journal(fleet, *JUNK[junk])
    fleet.start(Stage.EVAL)

    record = await fleet.result()

    assert (record["out"], record["rew"]) == ("infra_failure", "")
    assert "body: DamagedBody" in record["why"]


async def test_lost_turns_are_salvaged_also_by_a_full_redis(make_server: MakeServer, settings: QueueSettings, tmp_path: Path) -> None:
    """Promise 9: a full Redis drains what is in it. The salvaged trajectory was written by a command that it refuses."""
    server = make_server()
    own = settings.model_copy(update={"redis_url": server.url, "lease_s": 1.0})
    client = command_client(own)
    fleet = Fleet(own, client, tmp_path)
    await fleet.connect()
    try:
        await lost_with_a_journal(fleet, codec.encode(a_delta(0)))
        used = int((await ask(client, "INFO", "memory"))["used_memory"])
        await ask(client, "CONFIG", "SET", "maxmemory", used // 2)

        fleet.start(Stage.EVAL)

        record = await fleet.result()
        assert (record["out"], record["stop"]) == ("ok", "lost")
        assert (await fleet.trajectory(record)).stop is StopReason.LOST
    finally:
        await fleet.leave()
        await client.aclose()


def test_losing_a_lease_is_no_failure_of_a_handler() -> None:
    """What a gate raises in a child task comes out in a group."""
    lost = LeaseLost("job", 1)

    assert the_one_error(ExceptionGroup("tasks", [ExceptionGroup("inner", [lost])])) is lost
    assert isinstance(the_one_error(ExceptionGroup("tasks", [lost, ValueError()])), ExceptionGroup)
