"""`rollstream job show` tells of each attempt that was for nothing: where, by whom, when, and how it ended."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ops.job.as_map import story_as_map
from ops.job.story import JobStory, job_story
from ops.job.view import render_story
from pipeline.messages import Recovery, Stage
from pipeline.scripts import JournalTurn
from pipeline.testing import a_settlement, a_template, a_unit

from .conftest import Run


async def story_of(run: Run, job: str) -> JobStory:
    return await job_story(run.client, run.audit.keys, job)


def told(story: JobStory) -> list[tuple[int, str, str, str, str]]:
    return [(each.number, each.stage, each.worker, each.how, each.why) for each in story.attempts]


async def test_every_attempt_that_was_for_nothing_is_told_with_how_it_ended(run: Run) -> None:
    await run.accept(a_unit(), template=a_template(max_failed=2, max_lost=2))
    first, second = run.worker(Stage.INIT, "init-n1-0"), run.worker(Stage.INIT, "init-n2-0")
    await first.give_up(*await first.take(), why="no | such\nimage")
    await second.give_up(*await second.take(), kind="back", why="the worker drains")
    (held,) = await first.take()
    assert await second.recover("idle", held, lease_ms=0) == ["lost"]
    (held,) = await second.take()
    await second.hand_off(held)
    runner = run.worker(Stage.RUN, "run-n1-0", "boot1")
    (held,) = await runner.take()
    successor = await run.successor(runner, "boot2")
    assert await successor.recover("restart", held) == ["lost"]

    story = await story_of(run, held.job)

    assert told(story) == [
        (1, "init", "init-n1-0", "failed", "no | such\nimage"),
        (2, "init", "init-n2-0", "back", "the worker drains"),
        (3, "init", "init-n1-0", "lost", "its lease ran out"),
        (5, "run", "run-n1-0", "lost", "its worker started anew"),
    ]
    assert all(0 < each.began_ms <= each.ended_ms for each in story.attempts)
    assert [each.ended_ms for each in story.attempts] == sorted(each.ended_ms for each in story.attempts)
    out = io.StringIO()
    render_story(Console(file=out, width=200, color_system=None), story, longest=900)
    assert r"attempt 1, INIT by init-n1-0, failed after " in out.getvalue()
    assert r"s: no | such\nimage" in out.getvalue()
    assert story_as_map(story)["attempts"][3]["worker"] == "run-n1-0"  # type: ignore[index]


async def test_a_job_that_needed_no_second_attempt_has_none(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(held, settlement=a_settlement(1.0))

    assert told(await story_of(run, held.job)) == []


async def test_an_attempt_whose_turns_were_kept_is_told(run: Run) -> None:
    await run.accept(a_unit(), template=a_template(recovery=Recovery.SALVAGE_PARTIAL))
    (held,) = await run.reach(Stage.RUN)
    worker = run.worker(Stage.RUN)
    await run.scripts.journal([JournalTurn(held.job, held.attempt, 0, b"turn")], ttl_ms=60_000)

    assert await worker.recover("idle", held, lease_ms=0) == ["salvaged"]

    assert told(await story_of(run, held.job)) == [(2, "run", "w1", "salvaged", "its lease ran out")]


@pytest.mark.one_server
async def test_the_newest_are_kept(run: Run) -> None:
    """A job may be handed back without end; its hash has a bound all the same."""
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    for _ in range(20):
        (held,) = await worker.take()
        await worker.give_up(held, kind="back", why="x" * 2000)

    story = await story_of(run, held.job)

    assert [each.number for each in story.attempts] == [*range(5, 21)]
    assert {len(each.why) for each in story.attempts} == {500}
