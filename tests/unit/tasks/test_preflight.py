"""Preflight finds what would cost a training run: references that do not score, empty answers that do, graders that break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ops.tasks import Foreground
from ops.tasks.preflight import CheckedRow, Preflight, preflight
from ops.tasks.words import preflight_as_map, preflight_lines
from pipeline.errors import InvalidRequest
from pipeline.messages import Grade, JobSpec, JobTemplate, Trajectory
from workers.graders import GraderError
from workers.handlers import EvalContext, Handlers, RunContext, TaskHandler
from workers.handlers.base import NoSandboxes
from workers.handlers.submission import submitted


class Sums(TaskHandler):
    """A task whose rows say how they are judged."""

    name = "sums"

    def __init__(self, entered: Callable[[], object] = lambda: None) -> None:
        self._entered = entered

    async def run(self, context: RunContext) -> Trajectory:
        raise AssertionError("nobody acts in a preflight")

    async def evaluate(self, context: EvalContext) -> Grade:
        await asyncio.sleep(0)
        self._entered()
        row = context.spec.prompt.data
        if row.get("breaks"):
            raise GraderError("it cannot count", grader="sums/1")
        if row.get("walled"):
            context.provider()
        if row.get("nan"):
            return Grade(reward=float("nan"), grader="sums/1")
        right = context.trajectory.answer == str(row["answer"]) or bool(row.get("generous"))
        noticed = {name: row[name] for name in ("warnings", "tampering") if name in row}
        return Grade(reward=1.0 if right else 0.0, details={"said": context.trajectory.answer, **noticed}, grader="sums/1")

    def gold(self, spec: JobSpec) -> Trajectory | None:
        data = spec.prompt.data
        return submitted(str(data.get("solution", data["answer"]))) if data.get("solution") != "" else None


async def check(rows: Sequence[dict[str, object]], *, jobs: int = 4, handler: Sums | None = None) -> tuple[Preflight, list[CheckedRow]]:
    told: list[CheckedRow] = []
    async with Handlers({"sums": lambda: handler or Sums()}) as handlers:
        found = await preflight(Foreground(handlers), "sums", JobTemplate(task="sums"), rows, jobs=jobs, told=told.append)
    return found, told


async def test_rows_that_are_as_they_should_be_pass() -> None:
    found, told = await check([{"id": f"r{number}", "answer": number} for number in range(5)])

    assert found.passed
    assert {row.row for row in told} == {f"r{number}" for number in range(5)}
    assert [*preflight_lines(found)] == ["sums: 5 rows, 5 as they should be, 0 not; 5 references graded"]


async def test_what_is_wrong_is_told_row_by_row_with_what_it_scored() -> None:
    rows: list[dict[str, object]] = [
        {"id": "good", "answer": 4},
        {"id": "wrong reference", "answer": 4, "solution": 5},
        {"id": "pays for nothing", "answer": 4, "generous": True},
        {"id": "grader breaks", "answer": 4, "breaks": True},
        {"id": "no number", "answer": 4, "nan": True},
        {"id": "no reference", "answer": 4, "solution": ""},
        {"id": "unreadable"},
    ]

    found, _ = await check(rows)

    said = "\n".join(preflight_lines(found))
    assert [row.row for row in found.failed] == ["wrong reference", "pays for nothing", "grader breaks", "no number", "unreadable"]
    assert "wrong reference: the reference scores 0, expected 1" in said
    assert "reference: said: 5" in said
    assert "pays for nothing: an empty answer scores 1, expected 0" in said
    assert "grader breaks: the reference scores nothing: its grading broke" in said
    assert "grader: GraderError: sums/1 grader: it cannot count" in said
    assert "a reward must be a finite number" in said
    assert "unreadable: the reference scores nothing" in said
    assert "1 rows hold no reference: no reference" in said
    assert said.endswith("sums: 7 rows, 2 as they should be, 5 not; 6 references graded")
    assert preflight_as_map(found)["without_reference"] == ["no reference"]
    assert not found.passed


async def test_what_a_grader_noticed_is_told_once_with_its_rows_and_is_no_fault() -> None:
    rows: list[dict[str, object]] = [{"id": f"r{number}", "answer": number, "warnings": ["/old may hold it"]} for number in range(30)]
    rows.append({"id": "helped", "answer": 1, "tampering": ["conftest.py steers the runner"]})

    found, _ = await check(rows)

    assert found.passed
    first, second, last = preflight_lines(found)
    assert first == f"noticed: /old may hold it ({', '.join(f'r{number}' for number in range(20))}, ...)"
    assert second == "noticed: the reference is called tampering: conftest.py steers the runner (helped)"
    assert last == "sums: 31 rows, 31 as they should be, 0 not; 31 references graded"
    warnings = preflight_as_map(found)["warnings"]
    assert len(warnings) == 31
    assert warnings["r7"] == ["/old may hold it"]


async def test_no_more_rows_are_graded_at_a_time_than_asked_for() -> None:
    inside = most = 0

    def entered() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        asyncio.get_running_loop().call_soon(left)

    def left() -> None:
        nonlocal inside
        inside -= 1

    await check([{"id": number, "answer": number} for number in range(20)], jobs=2, handler=Sums(entered))

    assert 1 <= most <= 2


async def test_a_node_without_sandboxes_is_no_fault_of_the_data() -> None:
    """Each of 10,000 rows would be told to be wrong, and the data would be mended."""
    with pytest.raises(NoSandboxes):
        await check([{"id": "a", "answer": 1, "walled": True}, {"id": "b", "answer": 1}])


async def test_an_unknown_task_is_refused() -> None:
    async with Handlers() as handlers:
        with pytest.raises(InvalidRequest, match="no task 'nope' is installed here"):
            await preflight(Foreground(handlers), "nope", JobTemplate(task="nope"), [], jobs=1)
