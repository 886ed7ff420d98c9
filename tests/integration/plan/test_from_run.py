"""`rollstream plan --from-run` on a run of real stages whose work takes known times, each at least what it sleeps."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ops.plan import Measured, NothingMeasured, PlanSettings, make_plan, measured_in_run
from ops.plan.sizing import jobs_per_s
from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import Grade, Stage, Trajectory
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import a_template, a_trajectory
from tests.e2e.conftest import ROOT
from tests.integration.stages.fleet import RUN, TASK, Fleet, Play
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext

pytestmark = pytest.mark.one_server

INIT_S, MODEL_S, TOOL_S, EVAL_S = 0.04, 0.1, 0.06, 0.05
WHOLE = a_trajectory(tokens=8)
WHOLE = replace(WHOLE, turns=(replace(WHOLE.turns[0], model_s=MODEL_S),))


async def makes(context: StageContext) -> Environment:
    await asyncio.sleep(INIT_S)
    return Environment()


async def acts(context: RunContext) -> Trajectory:
    await asyncio.sleep(MODEL_S + TOOL_S)
    if context.spec.job.endswith("broken"):
        raise OSError("no space left on device")
    return WHOLE


async def judges(context: EvalContext) -> Grade:
    await asyncio.sleep(EVAL_S)
    return Grade(reward=1.0, grader="play/1")


async def test_a_plan_is_made_of_what_a_run_took(client: AsyncClient, settings: QueueSettings, keys: Keys, tmp_path: Path) -> None:
    fleet = Fleet(settings, client, tmp_path)
    await fleet.connect()
    with pytest.raises(NothingMeasured, match="ask while it runs"):
        await measured_in_run(client, settings, keys, RUN)
    await fleet.add("a", "b", "c", "broken", template=a_template(task=TASK, max_failed=0))
    fleet.start(play=Play(on_init=makes, on_run=acts, on_evaluate=judges))
    try:
        await fleet.results(4)
    finally:
        await fleet.leave()

    found = await measured_in_run(client, settings, keys, RUN)

    values = found.values
    assert (found.jobs, found.trajectories) == (3, 3)
    assert values["wasted"] == 0.25
    assert values["init_s"] >= INIT_S
    assert values["eval_s"] >= EVAL_S
    assert values["model_s"] == pytest.approx(MODEL_S)
    assert values["tool_s"] >= TOOL_S - 0.001  # what is left of RUN, whose time is told in whole milliseconds
    assert found.trajectory_bytes == len(codec.encode(WHOLE))
    told = {name: values[name] for name in ("turns", "prompt_tokens", "sampled_tokens")}
    assert told == {"turns": 1, "prompt_tokens": WHOLE.turns[0].start, "sampled_tokens": int(WHOLE.segments[0].sampled_mask.sum())}
    _holds(found)
    _command_says_the_same(settings, found, tmp_path)


def _holds(found: Measured) -> None:
    """Slots are the rate times what was measured."""
    asked = PlanSettings.model_validate({"groups": 10, "group_size": 4, "step_s": 2.0, "head_room": 0.2, **found.values})
    plan = make_plan(asked, dict.fromkeys(Stage, 8), found.trajectory_bytes)

    run_s = found.values["model_s"] + found.values["tool_s"]
    assert plan.stages[Stage.RUN].busy == pytest.approx(jobs_per_s(asked) * run_s)
    assert plan.stages[Stage.RUN].slots >= plan.stages[Stage.RUN].busy / 0.8
    assert plan.trajectory_bytes == found.trajectory_bytes


def _command_says_the_same(settings: QueueSettings, found: Measured, folder: Path) -> None:
    """What is said beats the run; what the run does not tell (nothing was filtered or judged) is the file's."""
    (folder / "rollstream.toml").write_text("[plan]\nfiltered = 0.4\n[node]\ninit = 2\nrun = 10\neval = '2x3'\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "ROLLSTREAM_REDIS_URL": settings.redis_url,
        "ROLLSTREAM_NAMESPACE": settings.namespace,
    }

    words = [sys.executable, "-m", "ops.cli", "plan", "--from-run", RUN, "--model-s", "9", "--json"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, timeout=120)

    assert done.returncode == 0, done.stderr.decode()
    said = orjson.loads(done.stdout)
    asked = said["asked"]
    assert (asked["model_s"], asked["filtered"], asked["wasted"], asked["turns"]) == (9.0, 0.4, 0.25, 1)
    assert asked["init_s"] == found.values["init_s"]
    assert [need["slots_a_node"] for need in said["stages"].values()] == [2, 10, 6]
    assert said["measured"]["trajectories"] == 3
