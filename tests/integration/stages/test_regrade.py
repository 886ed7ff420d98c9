"""Jobs that ended through real stages are judged again from what Redis has, and nothing of them changes; then as a person types it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ops.regrade import Case, Change, NotGradable, Regraded, Regrader, case_of, jobs_of_run, regrade
from ops.trajectory.source import record_of_job
from pipeline import codec
from pipeline.messages import Grade, Prompt, Stage, Trajectory
from pipeline.redis_client import ask
from pipeline.testing import ManualWorker, a_grade, a_settlement, a_template, a_trajectory
from tests.integration.stages.fleet import RUN, Fleet, Play
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext
from workers.handlers.registry import Handlers

pytestmark = pytest.mark.one_server

REWARDS = {"kept": 1.0, "raised": 0.0, "lowered": 1.0}


async def init(context: StageContext) -> Environment:
    return Environment(data={"base": "abc"})


async def run(context: RunContext) -> Trajectory:
    return replace(a_trajectory(answer=context.spec.prompt.id), extra={"patch": f"+{context.spec.prompt.id}"})


async def first_version(context: EvalContext) -> Grade:
    return Grade(reward=REWARDS[context.spec.prompt.id], grader="play/1", details={"reason": "first"})


async def second_version(context: EvalContext) -> Grade:
    """As the first one, with an idea of its own; it sees what the first one saw."""
    name = context.trajectory.answer
    assert (context.spec.prompt.id, context.trajectory.extra["patch"], context.environment.data) == (name, f"+{name}", {"base": "abc"})
    reward = {"raised": 0.5, "lowered": 0.0}.get(name, REWARDS[name])
    return Grade(reward=reward, grader="play/2", details={"reason": "first" if name == "kept" else "second"})


async def everything(fleet: Fleet) -> dict[bytes, object]:
    keys = [key async for key in fleet.client.scan_iter(match=fleet.keys.key("*"), count=1000)]
    ours = [key for key in keys if b":b:" in key or b":j:" in key or b":s:results" in key]
    return {key: await ask(fleet.client, "DUMP", key) for key in sorted(ours)}


async def test_a_changed_grader_is_tried_on_what_redis_has_of_a_run(fleet: Fleet) -> None:
    jobs = await fleet.add(*REWARDS)
    fleet.start(play=Play(on_init=init, on_run=run, on_evaluate=first_version))
    await fleet.results(3)
    before = await everything(fleet)

    async def read(name: str) -> Case:
        return case_of(await record_of_job(fleet.client, fleet.keys, name))

    found: list[Regraded] = []
    names = await jobs_of_run(fleet.client, fleet.keys, RUN)
    async with Handlers({"play": lambda: Play(on_evaluate=second_version)}) as handlers:
        await regrade(names, read, Regrader(handlers, None, max_attached_bytes=1024), parallel=2, told=found.append)

    by_job = {one.job.partition(".")[2]: one for one in found}
    assert sorted(names) == sorted(jobs)
    assert {name: one.change for name, one in by_job.items()} == {"kept": Change.SAME, "raised": Change.UP, "lowered": Change.DOWN}
    assert (by_job["raised"].before.grader, by_job["raised"].after.grader) == ("play/1", "play/2")
    assert (by_job["raised"].has_another_reason, by_job["kept"].has_another_reason) == (True, False)
    assert not any(one.has_other_inputs for one in found)
    assert all(one.before.inputs for one in found)
    assert await everything(fleet) == before, "a regrade replaces nothing"


async def test_jobs_of_a_run_are_the_newest_and_those_that_were_judged(fleet: Fleet) -> None:
    jobs = await fleet.add("a", "b", "c", "d")
    for stage in (Stage.INIT, Stage.RUN):
        worker = ManualWorker(fleet.scripts, stage)
        held = await worker.take()
        if stage is Stage.RUN:
            await fleet.scripts.cancel("job", [jobs[1]], "user")
        await worker.hand_off(*held)
    grader = ManualWorker(fleet.scripts, Stage.EVAL)
    for one in await grader.take():
        await grader.settle(one, body=codec.encode(a_grade()))

    newest = [record["job"] for record in reversed(await fleet.audit.results(RUN)) if record["job"] != jobs[1]]
    assert len(newest) == 3
    assert await jobs_of_run(fleet.client, fleet.keys, RUN) == newest
    assert await jobs_of_run(fleet.client, fleet.keys, RUN, limit=2) == newest[:2]
    assert await jobs_of_run(fleet.client, fleet.keys, RUN, since_ms=2**42) == []


async def math_jobs(fleet: Fleet, answers: Sequence[str]) -> list[str]:
    """Jobs of the task `math` about 2 + 2, all graded 0 by a grader of another time."""
    problem = codec.encode(Prompt(id="p", data={"question": "2 + 2?", "answer": "4"}))
    jobs = await fleet.add(*(f"m{number}" for number in range(len(answers))), template=a_template(task="math"), prompt_body=problem)
    init, run, grader = (ManualWorker(fleet.scripts, stage) for stage in Stage)
    await init.hand_off(*await init.take(), body=codec.encode(Environment()))
    for held, answer in zip(sorted(await run.take(), key=lambda one: one.job), answers, strict=True):
        await run.hand_off(held, body=codec.encode(a_trajectory(answer=rf"\boxed{{{answer}}}")))
    old = a_grade(0.0, components={"boxed": 1.0}, details={"reason": "old"}, grader="math/0.0.1")
    await grader.settle(*await grader.take(), settlement=a_settlement(0.0), body=codec.encode(old))
    return jobs


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_as_a_person_types_it(fleet: Fleet, tmp_path: Path) -> None:
    """The whole command: lines, summary, file of results, exit codes; and what is gone."""
    right, wrong = await math_jobs(fleet, ["4", "5"])
    queue = {"ROLLSTREAM_REDIS_URL": fleet.settings.redis_url, "ROLLSTREAM_NAMESPACE": fleet.settings.namespace}

    async def rollstream(*words: str) -> tuple[int, str, str]:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "ops.cli", *words)
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **queue}, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    results = tmp_path / "found.jsonl"
    code, out, err = await rollstream("run", "regrade", RUN, "--results", str(results))

    assert code == 1, err
    lines = out.splitlines()
    assert any(line.startswith(f"{right}  up  0 → 1  reason: old → ") for line in lines)
    assert "1 same · 1 up · 0 down" in out
    assert "mean reward 0.0000 → 0.5000" in lines
    assert {orjson.loads(line)["job"] for line in results.read_bytes().splitlines()} == {right, wrong}

    found = [record["entry"] for record in await fleet.audit.results(RUN) if record["job"] == right]
    await fleet.scripts.ack(RUN, fleet.incarnation, [(found[0], "job", right)])
    code, out, _ = await rollstream("job", "regrade", wrong, right, "--json")

    assert code == 0, "what can be judged is as it was"
    told = {one["job"]: one for one in orjson.loads(out)["jobs"]}
    assert {job: one["change"] for job, one in told.items()} == {wrong: "same", right: "skipped"}
    assert "its trainer acknowledged it" in told[right]["skipped"]
    assert "rollstream trajectory save" in told[right]["skipped"]


async def test_what_was_acknowledged_is_refused_with_what_to_do(fleet: Fleet) -> None:
    (job,) = await math_jobs(fleet, ["4"])
    (record,) = await fleet.audit.results(RUN)
    await ask(fleet.client, "DEL", fleet.keys.prompt(job))

    with pytest.raises(NotGradable, match=r"its prompt is not kept\. Bodies go when a result is acknowledged"):
        case_of(await record_of_job(fleet.client, fleet.keys, job))

    assert record["job"] == job
