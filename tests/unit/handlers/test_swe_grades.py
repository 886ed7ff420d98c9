"""From an evaluation to a grade, and how a patch travels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import JobSpec, Prompt
from pipeline.testing import a_job, a_template
from tests.judged import eval_context
from tests.unit.handlers.test_swe_rows import OWN, SWE_SMITH
from workers.graders import GraderError
from workers.graders.swe import Applied, judge
from workers.graders.swe.evaluate import Evaluation
from workers.graders.swe.steering import PutBack
from workers.handlers.submission import submitted
from workers.handlers.swe.handler import SweHandler, graded, patch_as_extra, patch_in


def spec_of(row: dict[str, object], **changes: object) -> JobSpec:
    return replace(a_job(template=a_template(task="swe", **changes)), prompt=Prompt(id="a", data=row))


APPLIED = Applied(applies=True, how="apply", paths=("a.py",))


def evaluation(a: str = "PASSED", b: str = "PASSED", keep: str = "PASSED", **changes: object) -> Evaluation:
    verdict = judge({"a": a, "b": b, "keep": keep}, ["a", "b"], ["keep"])
    known: dict[str, object] = {
        "resolved": verdict.resolved,
        "reason": verdict.reason,
        "detail": verdict.detail,
        "applied": APPLIED,
        "verdict": verdict,
    }
    return Evaluation(**{**known, **changes})  # type: ignore[arg-type]  # fields by name


def test_all_or_nothing() -> None:
    assert graded(evaluation(), fractional=False, extra={}).reward == 1.0
    half = graded(evaluation(b="FAILED"), fractional=False, extra={})
    assert (half.reward, half.components["f2p"], half.components["p2p"]) == (0.0, 0.5, 1.0)
    assert half.details["not_fixed"] == ["b"]


@pytest.mark.parametrize(
    ("found", "reward"),
    [
        (evaluation(), 1.0),
        (evaluation(b="FAILED"), 0.5),
        (evaluation(a="FAILED", b="FAILED"), 0.0),
        (evaluation(keep="FAILED"), 0.0),
        (evaluation(b="FAILED", reason="timed_out", resolved=False), 0.0),
        (evaluation(resolved=False, reason="not_trusted", trusted=False), 0.0),
    ],
)
def test_fractions_count_only_what_broke_nothing_in_a_run_that_can_be_trusted(found: Evaluation, reward: float) -> None:
    assert graded(found, fractional=True, extra={}).reward == reward


def test_ends_of_a_run_that_cannot_be_trusted_are_no_shares() -> None:
    components = graded(
        evaluation(resolved=False, reason="not_trusted", trusted=False, tampering=("x",)), fractional=False, extra={}
    ).components

    assert components == {"resolved": 0.0, "f2p": 0.0, "p2p": 0.0, "tampering": 1.0, "applied": 1.0}


def test_tampering_alone_costs_nothing_and_is_told() -> None:
    grade = graded(
        evaluation(tampering=("conftest.py steers the runner",), put_back=PutBack(steering=("conftest.py",))), fractional=False, extra={}
    )

    assert (grade.reward, grade.components["tampering"]) == (1.0, 1.0)
    assert grade.details["put_back"] == ["conftest.py"]


def test_a_patch_that_does_not_apply() -> None:
    found = Evaluation(resolved=False, reason="conflict", detail="f.txt", applied=Applied(applies=False, reason="conflict"))

    grade = graded(found, fractional=True, extra={"patch_left_out": ["big.bin: too large"]})

    assert (grade.reward, grade.components["applied"], grade.details["reason"]) == (0.0, 0.0, "conflict")
    assert grade.details["patch_left_out"] == ["big.bin: too large"]


def test_what_an_image_still_holds_of_later_history_is_told() -> None:
    """The row is as good as ever; whoever made the image can make a better one."""
    found = evaluation(outside=("/mirror/objects",), applied=replace(APPLIED, dropped=("logo.png",)))

    grade = graded(found, fractional=False, extra={})

    assert grade.reward == 1.0
    assert grade.details["warnings"] == [
        "/mirror/objects is outside of the repository and may hold its later history",
        "logo.png was dropped from the patch: a submodule, or a binary change without its data",
    ]
    assert "warnings" not in graded(evaluation(), fractional=False, extra={}).details


@pytest.mark.parametrize("patch", [b"", b"text\n", "Grüße\n".encode(), b"latin \xe9\n", bytes(range(256))])
def test_a_patch_travels_as_it_is(patch: bytes) -> None:
    assert patch_in(patch_as_extra(patch)) == patch


@pytest.mark.parametrize("extra", [{"patch": 5}, {"patch_base64": "not base64!"}])
def test_a_patch_that_nobody_wrote_so_is_no_zero(extra: dict[str, object]) -> None:
    with pytest.raises(GraderError):
        patch_in(extra)


async def test_an_attempt_that_was_lost_with_its_sandbox_is_no_empty_patch() -> None:
    """Salvaged from its journal, a trajectory has the turns and not the patch: nobody knows what it was worth."""
    salvaged = replace(SweHandler().empty(spec_of(OWN)), extra={})

    with pytest.raises(InvalidRequest, match="lost with its sandbox"):
        await SweHandler().evaluate(eval_context(spec_of(OWN), salvaged))


async def test_an_empty_patch_costs_no_sandbox() -> None:
    grade = await SweHandler().evaluate(eval_context(spec_of(OWN), SweHandler().empty(spec_of(OWN))))

    assert (grade.reward, grade.details["reason"]) == (0.0, "empty_patch")


async def test_a_repository_that_could_not_be_read_any_more_says_so() -> None:
    lost = submitted("", {"patch": "", "patch_trouble": "repository_lost", "patch_detail": "no objects"})

    grade = await SweHandler().evaluate(eval_context(spec_of(OWN), lost))

    assert (grade.reward, grade.details["reason"], grade.details["patch_detail"]) == (0.0, "repository_lost", "no objects")


def test_an_image_is_never_run_without_walls() -> None:
    with pytest.raises(InvalidRequest, match="needs walls"):
        SweHandler().sandbox_spec(spec_of(SWE_SMITH))
    assert SweHandler().sandbox_spec(spec_of(SWE_SMITH, capability="isolated")).image == SWE_SMITH["image_name"]


def test_the_model_is_told_where_the_repository_is_and_nothing_of_the_tests() -> None:
    said = SweHandler().messages(spec_of(OWN, capability="isolated"))[1].content
    assert "in /workspace/repo." in said
    assert "It is wrong." in said
    assert "test_a" not in said
    assert "the folder `repo` of your working directory" in SweHandler().messages(spec_of(OWN))[1].content


def test_tools_are_those_of_the_options() -> None:
    with pytest.raises(InvalidRequest, match=r"options\.python"):
        SweHandler().tools(spec_of(OWN, options={"python": "yes"}), None)
