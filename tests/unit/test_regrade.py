"""Judging again, without Redis: what counts as a change, what the shell is told, and how a stopped regrade goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from ops.cli.regrading import exit_code_of
from ops.regrade import Case, Change, Found, NotGradable, Regraded, Regrader, ResultsFile, Summary, case_of, regrade
from ops.regrade.words import line_of, summary_lines
from pipeline import codec
from pipeline.errors import BrokerUnreachable, InvalidRequest
from pipeline.messages import Grade, JobTemplate, Prompt, RewardSource
from pipeline.testing import a_grade, a_template, a_trajectory
from pipeline.trajectory_file import TrajectoryRecord, read, record_of, write
from tests.integration.stages.fleet import Play
from workers.graders.errors import GraderError
from workers.handlers.base import Environment, EvalContext
from workers.handlers.registry import Handlers
from workers.handlers.submission import submitted

FACTS = {"job": "run1.e0-1.0.3", "run": "run1", "group": "run1.e0-1.0", "member": "3", "draw": "2", "attempt": "3", "outcome": "ok"}
PROMPT = Prompt(id="e0-1", data={"question": "?"}, first_member=8)


def a_record(*, grade: Grade | None = None, template: JobTemplate | None = None, without: str = "", **facts: str) -> TrajectoryRecord:
    parts = {
        "template": codec.encode(template or a_template(task="play")),
        "prompt": codec.encode(PROMPT),
        "environment": codec.encode(Environment(data={"base": "abc"})),
        "grade": codec.encode(grade or Grade(reward=1.0, components={"tests": 1.0}, details={"reason": "all passed"}, grader="play/1")),
    }
    parts.pop(without, None)
    return record_of("a file", codec.encode(a_trajectory()), {**FACTS, **facts}, parts=parts)


def one(before: float | None, after: float | None, **changes: object) -> Regraded:
    return replace(Regraded(job="j", before=Found(reward=before), after=Found(reward=after)), **changes)  # type: ignore[arg-type]


def test_a_record_has_all_that_judging_again_takes(tmp_path: Path) -> None:
    write(tmp_path / "one.trajectory", a_record())

    case = case_of(read(tmp_path / "one.trajectory"))

    assert (case.job, case.outcome, case.spec.member, case.spec.draw, case.spec.attempt) == (FACTS["job"], "ok", 11, 2, 3)
    assert (case.spec.group, case.spec.prompt, case.spec.template.task) == ("run1.e0-1.0", PROMPT, "play")
    assert (case.environment.data, case.before.reward, case.before.reason) == ({"base": "abc"}, 1.0, "all passed")


@pytest.mark.parametrize("part", ["template", "prompt"])
def test_what_is_missing_is_named_with_what_to_do(part: str) -> None:
    with pytest.raises(NotGradable, match=f"run1.e0-1.0.3: its {part} is not kept.*rollstream trajectory save"):
        case_of(a_record(without=part))


def test_a_record_without_a_grade_or_notes_of_init_is_judged_all_the_same() -> None:
    assert case_of(a_record(without="grade")).before == Found()
    assert case_of(a_record(without="environment")).environment == Environment()


def test_jobs_that_eval_never_judges_are_not_judged_again() -> None:
    with pytest.raises(NotGradable, match="it ended as cancelled"):
        case_of(a_record(outcome="cancelled"))
    with pytest.raises(NotGradable, match="its reward comes from outside"):
        case_of(a_record(template=a_template(task="play", reward=RewardSource.OUTSIDE)))
    with pytest.raises(NotGradable, match="it is in RUN"):
        case_of(replace(a_record(), ended=False))


def test_a_record_that_cannot_be_read_is_said() -> None:
    broken = a_record()

    with pytest.raises(NotGradable, match="its prompt cannot be read"):
        case_of(replace(broken, parts={**broken.parts, "prompt": b"\x00\xc1"}))


CHANGES: list[tuple[Regraded, Change]] = [
    (one(1.0, 1.0), Change.SAME),
    (one(1.0, 1.0 + 1e-12), Change.SAME),
    (one(0.0, 0.5), Change.UP),
    (one(1.0, 0.0), Change.DOWN),
    (one(None, 0.0), Change.FIRST),
    (one(1.0, None, error="grader: GraderError: x"), Change.ERROR),
    (one(1.0, 0.0, skipped="acked"), Change.SKIPPED),
    (Regraded(job="j", before=Found(reward=1.0, components={"tests": 1.0}), after=Found(reward=1.0)), Change.PARTS),
]


@pytest.mark.parametrize(("found", "change"), CHANGES, ids=[f"{number}-{change}" for number, (_, change) in enumerate(CHANGES)])
def test_which_way_a_reward_went(found: Regraded, change: Change) -> None:
    assert found.change is change


def test_the_shell_is_told_whether_anything_changed() -> None:
    same, up, broken, gone = one(1.0, 1.0), one(0.0, 1.0), one(1.0, None, error="x"), one(1.0, None, skipped="acked")

    assert exit_code_of(Summary.of([same, gone])) == 0
    assert exit_code_of(Summary.of([same, up])) == 1
    assert exit_code_of(Summary.of([gone])) == exit_code_of(Summary.of([])) == 2
    assert exit_code_of(Summary.of([same, up, broken])) == exit_code_of(Summary.of([broken])) == 4


def test_a_run_without_a_result_that_is_kept_says_so() -> None:
    """It said `0 judged again by no grader`, and left open why."""
    (line,) = summary_lines(Summary.of([]), seconds=0.1)

    assert line.startswith("there is nothing to judge: no ended job is kept")
    assert "rollstream trajectory save" in line


def test_jobs_that_were_skipped_are_summed_by_reason() -> None:
    """Each had a line, and of a run that was acknowledged there were thousands of one."""
    found = [replace(one(1.0, None, skipped=f"no job 'run1.{n}.0': it went"), job=f"run1.{n}.0") for n in range(1200)]
    found += [replace(one(1.0, None, skipped="its prompt is not kept"), job="run1.7.1")]

    summary = Summary.of(found)

    assert [(reason.count, reason.example) for reason in summary.skipped] == [(1200, "run1.0.0"), (1, "run1.7.1")]
    assert [line for line in summary_lines(summary, seconds=2.0) if line.startswith("skipped")] == [
        "skipped 1,200, such as run1.0.0: no job ...: it went",
        "skipped 1, run1.7.1: its prompt is not kept",
    ]


def test_means_are_of_jobs_that_have_both_rewards() -> None:
    summary = Summary.of([one(0.0, 1.0), one(1.0, 1.0), one(None, 1.0), one(1.0, None, error="x")])

    assert (summary.mean_before, summary.mean_after, summary.judged) == (0.5, 1.0, 3)
    assert "mean reward 0.5000 → 1.0000" in list(summary_lines(summary, seconds=2.0))


def test_a_line_says_what_changed_and_obeys_nobody() -> None:
    found = Regraded(
        job="run1.e0-1.0.3",
        before=Found(reward=1.0, components={"tests": 1.0, "style": 0.5}, reason="all passed", inputs={"answer": "a"}),
        after=Found(reward=0.0, components={"tests": 0.0, "style": 0.5}, reason="\x1b[2J1 failed", inputs={"answer": "b"}),
    )

    assert line_of(found) == (
        "run1.e0-1.0.3  down  1 → 0  tests 1 → 0  reason: all passed → " + r"\x1b[2J1 failed" + "  ANOTHER ANSWER than was judged then"
    )


def test_a_grader_that_an_answer_broke_is_a_reason() -> None:
    found = Found.of(a_grade(0.0, details={"stop": "grader_broken", "reason": "grader: GraderError: no verdict"}))

    assert found.reason == "grader_broken: grader: GraderError: no verdict"


def test_a_stopped_regrade_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    """It was killed in the middle of a line. What had failed, or was not there, is tried again."""
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as file:
        for name, found in {"a": one(0.0, 1.0), "b": one(1.0, None, error="x"), "c": one(1.0, None, skipped="gone")}.items():
            file.add(replace(found, job=name))
    path.write_bytes(path.read_bytes() + b'{"job": "d", "bef')

    with ResultsFile(path) as file:
        assert list(file.done) == ["a"]
        assert file.done["a"].change is Change.UP
        file.add(replace(one(1.0, 1.0), job="b"))

    assert [orjson.loads(line)["job"] for line in path.read_bytes().splitlines()] == ["a", "b", "c", "b"]
    with ResultsFile(path) as file:
        assert set(file.done) == {"a", "b"}


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b"buy milk\n")

    with pytest.raises(InvalidRequest, match="notes:1 is no line of a regrade"), ResultsFile(path):
        pass
    with pytest.raises(InvalidRequest, match="Is a directory"), ResultsFile(tmp_path):
        pass

    assert path.read_bytes() == b"buy milk\n"


def handlers(play: Play) -> Handlers:
    return Handlers({"play": lambda: play})


async def cases(name: str) -> Case:
    return case_of(a_record(job=name))


async def test_cases_are_judged_so_many_at_a_time_and_what_is_done_is_told_again() -> None:
    at_work, most, judged = [0], [0], list[str]()

    async def evaluate(context: EvalContext) -> Grade:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        for _ in range(3):
            await asyncio.sleep(0)
        at_work[0] -= 1
        judged.append(context.spec.job)
        return Grade(reward=0.0, grader="play/2")

    found: list[Regraded] = []
    done = {"j3": replace(one(1.0, 1.0), job="j3")}
    async with handlers(Play(on_evaluate=evaluate)) as tasks:
        regrader = Regrader(tasks, None, max_attached_bytes=1024)
        await regrade([f"j{number}" for number in range(9)], cases, regrader, parallel=3, told=found.append, done=done)

    assert most[0] == 3
    assert sorted(judged) == [f"j{number}" for number in range(9) if number != 3]
    assert {one.job: one.change.value for one in found} == {f"j{number}": "same" if number == 3 else "down" for number in range(9)}


async def test_a_case_that_breaks_its_grader_costs_itself_and_gold_is_asked() -> None:
    async def evaluate(context: EvalContext) -> Grade:
        if context.spec.job == "poison" and context.trajectory.answer != "gold":
            raise GraderError("no verdict", grader="play")
        if context.spec.job == "broken":
            raise GraderError("it is not installed", grader="play")
        return Grade(reward=1.0, components={"tests": 1.0}, details={"reason": "all passed"}, grader="play/2")

    found: list[Regraded] = []
    async with handlers(Play(on_evaluate=evaluate, on_gold=lambda spec: submitted("gold"))) as tasks:
        regrader = Regrader(tasks, None, max_attached_bytes=1024)
        await regrade(["poison", "broken", "fine"], cases, regrader, parallel=2, told=found.append)

    by_job = {one.job: one for one in found}
    assert (by_job["poison"].change, by_job["poison"].after.reward) == (Change.DOWN, 0.0)
    assert by_job["poison"].after.reason == "grader_broken: grader: GraderError: play grader: no verdict"
    assert (by_job["broken"].change, by_job["broken"].error) == (Change.ERROR, "grader: GraderError: play grader: it is not installed")
    assert by_job["fine"].change is Change.SAME


async def test_a_redis_that_is_gone_ends_the_whole() -> None:
    """It was told of each job as an error of that job, thousands of times, after waiting for Redis each time."""

    async def gone(name: str) -> Case:
        raise BrokerUnreachable("no contact")

    async with handlers(Play()) as tasks:
        with pytest.raises(BrokerUnreachable):
            await regrade(["a", "b", "c"], gone, Regrader(tasks, None, max_attached_bytes=1), parallel=2, told=lambda one: None)


async def test_a_task_that_is_not_installed_here_is_an_error_that_names_what_is() -> None:
    found: list[Regraded] = []

    async def of_chess(name: str) -> Case:
        return case_of(a_record(template=a_template(task="chess")))

    async with Handlers() as tasks:
        await regrade(["a"], of_chess, Regrader(tasks, None, max_attached_bytes=1), parallel=1, told=found.append)

    assert "no task 'chess' is installed here; known are " in found[0].error
