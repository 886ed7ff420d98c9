"""Task folders of Harbor without walls: read from disk, played by a scripted model, judged by their own tests."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ops.tasks import Foreground
from ops.tasks.attempt import Attempt, attempt
from pipeline.errors import InvalidRequest
from pipeline.messages import JobSpec
from tests.judged import eval_context, spec_of
from workers.agent.trajectory import TurnDelta
from workers.graders import GraderError
from workers.handlers.harbor.handler import HarborHandler
from workers.handlers.harbor.layouts import LAYOUTS
from workers.handlers.registry import Handlers
from workers.handlers.submission import submitted
from workers.handlers.task_data import BadTaskData, Row, load_rows
from workers.llm.scripted import InProcessBackend
from workers.sandbox.base import SandboxProvider
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend

TASKS = Path(__file__).parent / "tasks"
ANY_IMAGE = {"images": {"*": ""}}
FINISH = '<tool_call>\n{"name": "finish", "arguments": {"answer": ""}}\n</tool_call>'


def rows() -> dict[str, Row]:
    return {str(row["id"]): row for row in load_rows(TASKS, LAYOUTS).rows}


def bash(command: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


def job(row: Row, number: int = 0, **options: object) -> JobSpec:
    spec = spec_of("harbor", row, {**ANY_IMAGE, **options})
    return replace(spec, job=f"{spec.job}-{number}", template=replace(spec.template, capability="none"))


async def noted(delta: TurnDelta) -> None:
    """Keeps no journal."""


@pytest.fixture
async def sandboxes(place: Path) -> AsyncIterator[SandboxProvider]:
    async with LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="here") as provider:
        yield provider


async def play(sandboxes: SandboxProvider, spec: JobSpec, lines: list[str]) -> Attempt:
    async with Handlers() as handlers:
        return await attempt(Foreground(handlers, sandboxes), spec, InProcessBackend(lines), journal=noted)


def test_folders_become_rows_that_stand_alone() -> None:
    found = rows()

    assert list(found) == ["rollstream/count-lines", "tidy-up"]
    task = LAYOUTS[0].read(found["rollstream/count-lines"], "here")
    assert (task.workdir, task.memory_mb, task.verifier_timeout_s, task.image) == ("/app", 1024, 20.0, "")
    assert task.verifier_env == {"CASES": "3"}, "the default of what Harbor would take from its own environment"
    assert set(task.tests) == {"test.sh", "case1.txt", "case2.txt", "case3.txt"}
    assert task.tests["test.sh"].executable


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ('[verifier]\nenvironment_mode = "separate"', "verifier.environment_mode"),
        ('[[steps]]\nname = "one"', "steps"),
        ('[environment]\nos = "windows"', "environment.os"),
        ('[environment.env]\nTOKEN = "${TOKEN}"', "env.TOKEN"),
        ("[verifier", "task.toml"),
    ],
)
def test_what_cannot_be_judged_as_harbor_does_is_refused_with_its_name(tmp_path: Path, written: str, field: str) -> None:
    shutil.copytree(TASKS / "tidy-up", tmp_path / "task")
    (tmp_path / "task" / "task.toml").write_text(written)

    with pytest.raises(BadTaskData) as refused:
        load_rows(tmp_path, LAYOUTS)

    assert refused.value.field == field


def test_a_task_that_has_a_dockerfile_alone_says_how_to_bring_its_image() -> None:
    spec = spec_of("harbor", rows()["tidy-up"])

    with pytest.raises(InvalidRequest, match=r"rollstream image pull.*images: \{\"tidy-up\"") as refused:
        HarborHandler().sandbox_spec(spec)

    assert refused.value.field == "options.images"


async def test_an_agent_that_does_part_of_it_has_part_of_the_reward(sandboxes: SandboxProvider) -> None:
    """The script counts all lines, empty ones too: right for one case of three."""
    wrong = "printf '#!/bin/bash\\nwc -l < \"$1\"\\n' > count.sh && chmod +x count.sh"

    found = await play(sandboxes, job(rows()["rollstream/count-lines"]), [bash(wrong), FINISH])

    grade = found.judged.grade
    assert grade.reward == pytest.approx(1 / 3, abs=1e-4)
    assert "case 2 is wrong" in str(grade.details["log"])
    assert b"case 2 is wrong" in gzip.decompress(found.judged.attached["log"])


async def test_parts_of_a_reward_are_components_and_one_of_them_can_be_the_reward(sandboxes: SandboxProvider) -> None:
    row = rows()["tidy-up"]
    lines = [bash("mkdir letters; touch letters/one letters/two stray"), FINISH]

    found = await play(sandboxes, job(row), lines)
    by_key = await play(sandboxes, job(row, 1, reward_key="letters"), lines)

    assert (found.judged.grade.reward, found.judged.grade.components) == (0.0, {"reward": 0.0, "letters": 1.0, "tidy": 0.0})
    assert by_key.judged.grade.reward == 1.0


async def test_what_an_agent_left_running_meets_no_test_and_what_it_wrote_beforehand_is_gone(sandboxes: SandboxProvider) -> None:
    """It writes a reward, and leaves a program that writes one again as soon as the tests have written theirs. They give it time."""
    script = (
        "#!/bin/bash\n[ -e /logs/verifier/reward.txt ] && exit 1\necho 0 > /logs/verifier/reward.txt\n"
        "for _ in {1..40}; do [ -e /logs/forged ] && break; sleep 0.01; done\n"
    )
    forge = (
        "cd .harbor 2>/dev/null || { mkdir -p .harbor/logs/verifier; cd .harbor; }; echo 1 > logs/verifier/reward.txt; "
        "(setsid bash -c 'until grep -q 0 logs/verifier/reward.txt; do :; done; echo 1 > logs/verifier/reward.txt; touch logs/forged' "
        ">/dev/null 2>&1 &)"
    )
    row = {**rows()["tidy-up"], "tests": {"test.sh": script}}

    found = await play(sandboxes, job(row), [bash(forge), FINISH])

    assert found.judged.grade.details["exit_code"] == 0
    assert found.judged.grade.reward == 0.0


async def test_no_reward_file_is_no_reward_of_zero(sandboxes: SandboxProvider) -> None:
    row = {**rows()["tidy-up"], "tests": {"test.sh": "#!/bin/bash\necho nothing is written\n"}}
    handler = HarborHandler()
    spec = job(row)

    with pytest.raises(GraderError, match=r"neither reward.txt nor reward.json; test.sh ended with 0: nothing is written"):
        await handler.evaluate(eval_context(spec, handler.empty(spec), sandboxes))
    with pytest.raises(GraderError, match="nothing of the tests"):
        await handler.evaluate(eval_context(spec, submitted(""), sandboxes))


async def test_solutions_score_and_nothing_does_not(sandboxes: SandboxProvider) -> None:
    handler = HarborHandler()
    for row in rows().values():
        spec = job(row)
        gold = handler.gold(spec)
        assert gold is not None
        assert (await handler.evaluate(eval_context(spec, gold, sandboxes))).reward == 1.0, row["id"]
        assert (await handler.evaluate(eval_context(spec, handler.empty(spec), sandboxes))).reward == 0.0, row["id"]
