"""Whole jobs in the foreground: INIT, RUN with the scripted model, EVAL, in sandboxes of a real node service without walls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ops.tasks import Foreground
from ops.tasks.attempt import Attempt, attempt
from ops.tasks.rows import read_rows, spec_of
from ops.tasks.scripts import scripted_problems
from pipeline.messages import JobTemplate
from workers.agent.trajectory import TurnDelta
from workers.handlers import Handlers
from workers.handlers.submission import submitted
from workers.handlers.task_data import Row
from workers.llm.connect import connect_backend
from workers.llm.scripted import PolicyOptions, Problem, ScriptedServer, ServerOptions
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import RemoteSandboxes, served_here


@pytest.fixture
async def node() -> AsyncIterator[RemoteSandboxes]:
    with TemporaryDirectory(prefix="try-") as folder:  # short: sockets live below
        place = Path(folder)
        local = LocalSandboxes(ProcessBackend(), scratch_dir=place / "scratch", run_dir=place / "sbx", node="here")
        async with served_here(local, place / "run", fleet="tests") as service:
            yield service


async def tried(node: RemoteSandboxes, task: str, *, right: bool, row: int = 0) -> tuple[Attempt, list[TurnDelta]]:
    deltas: list[TurnDelta] = []

    async def journal(delta: TurnDelta) -> None:
        deltas.append(delta)

    async with Handlers() as handlers:
        handler, template = await handlers.find(task), JobTemplate(task=task)
        rows = read_rows(handler, None).rows[row : row + 1]
        policy = PolicyOptions(all_right=1.0 if right else 0.0, all_wrong=0.0 if right else 1.0, bad_json_rate=0.0, mean_steps=1.0)
        async with (
            ScriptedServer(ServerOptions(policy=policy), scripted_problems(handler, template, rows)) as server,
            connect_backend(server.url) as model,
        ):
            done = await attempt(Foreground(handlers, node), spec_of(template, rows[0]), model, journal=journal)
    assert await node.owned() == []  # nothing that it started is left
    return done, deltas


@pytest.mark.parametrize("task", ["code", "stem", "swe"])
async def test_the_scripted_model_solves_a_problem_and_fails_at_it_as_it_is_told(node: RemoteSandboxes, task: str) -> None:
    done, deltas = await tried(node, task, right=True)
    failed, _ = await tried(node, task, right=False)

    assert done.judged.grade.reward == 1.0, done.judged.grade
    assert failed.judged.grade.reward < 1.0, failed.judged.grade
    assert len(deltas) == len(done.trajectory.turns) > (0 if task == "stem" else 1)
    calls = sum(turn.tool_calls for turn in done.trajectory.turns)
    assert (calls, sum(turn.tool_errors for turn in done.trajectory.turns)) == ({"code": 1, "stem": 0, "swe": 4}[task], 0)


@pytest.mark.parametrize("task", ["reasoning_gym", "stem"])
async def test_what_members_say_that_fail_scores_less_than_the_reference(task: str) -> None:
    """Said around an answer that was right, as a word before its tags, it was right as well: no group was informative."""
    async with Handlers() as handlers:
        handler, template = await handlers.find(task), JobTemplate(task=task)
        rows = read_rows(handler, None).rows[::9]
        problems = scripted_problems(handler, template, rows)
        stages = Foreground(handlers)

        async def scores(row: Row, problem: Problem) -> list[float]:
            answers = [submitted(script[-1].say) for script in (problem.right, *problem.wrong)]
            return [(await stages.evaluate(spec_of(template, row), answer)).grade.reward for answer in answers]

        found = await asyncio.gather(*map(scores, rows, problems))

    assert all(right == 1.0 and given_up <= 0.01 for right, _, given_up in found), found  # some scorers pay an honest try
    near = [wrong for _, wrong, _ in found]
    assert sum(wrong < 1.0 for wrong in near) >= 0.8 * len(near), found  # of some puzzles more than one answer is right
