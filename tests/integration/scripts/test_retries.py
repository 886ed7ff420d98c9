"""Failed attempts come again after a pause, within their budget; what is handed back costs nothing (promises 1 and 2)."""

from __future__ import annotations

import pytest

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing import a_group, a_template, a_unit, wait_until

from .conftest import Run


async def test_a_failure_is_counted_and_a_used_up_budget_is_a_dead_letter(run: Run) -> None:
    await run.accept(a_unit(), template=a_template(max_failed=2))
    worker = run.worker(Stage.INIT)
    words = []
    for number in range(3):
        words += await worker.give_up(*await worker.take(), why=f"try {number}: no | such | image")

    assert words == ["retry", "retry", "dead"]
    (record,) = await run.audit.results("run1")
    (dead,) = await run.audit.entries(run.audit.keys.dead)
    assert (record["out"], record["rew"], record["att"], record["why"]) == ("infra_failure", "", "3", "try 2: no | such | image")
    assert (dead["failed"], dead["lost"], dead["why"], dead["rid"]) == ("3", "0", "try 2: no | such | image", record["entry"])


async def test_a_reason_with_any_text_in_it_does_not_break_the_line_of_a_member(run: Run) -> None:
    """Member lines are fields joined by `|`. An exception's text may hold that, line ends, control characters, or a lone surrogate, which
    has no UTF-8 form: encoding it raised in the consumer and took the worker down."""
    group = a_group(members=1)
    await run.accept(group)
    worker = run.worker(Stage.INIT)

    assert await worker.give_up(*await worker.take(), kind="dead", why="a | b\n\x00\ud800 ü 漢") == ["dead"]

    (line,) = (await run.audit.members(group.id)).values()
    assert (line[0], line[1], line[6], len(line)) == ("infra_failure", "", "1", 12)
    assert "a / b" in line[10]
    assert "ü 漢" in line[10]
    assert line[11] == ""
    assert "a | b" in (await run.audit.results("run1"))[0]["why"]


async def test_a_job_no_retry_can_help_ends_at_once_and_keeps_its_count(run: Run) -> None:
    await run.accept(a_unit(), template=a_template(max_failed=5))
    worker = run.worker(Stage.INIT)
    await worker.give_up(*await worker.take())

    assert await worker.give_up(*await worker.take(), kind="dead", why="no handler of that name") == ["dead"]

    (dead,) = await run.audit.entries(run.audit.keys.dead)
    assert (dead["failed"], dead["att"]) == ("1", "2")


@pytest.mark.parametrize("stage", list(Stage))
async def test_a_job_handed_back_is_uncounted_and_claimable_at_once_under_a_new_attempt(run: Run, stage: Stage) -> None:
    await run.accept(a_unit(), template=a_template(max_failed=0, max_lost=0))
    (held,) = await run.reach(stage)
    worker = run.worker(stage)

    assert await worker.give_up(held, kind="back", backoff_ms=60_000) == ["back"]

    (again,) = await worker.take()
    job = await run.audit.job(held.job)
    assert (again.attempt, job["failed"], job["lost"], job["stage"]) == (held.attempt + 1, "0", "0", stage.value)


async def test_a_lost_environment_counts_as_a_loss(run: Run) -> None:
    await run.accept(a_unit(), template=a_template(max_failed=0, max_lost=1))
    (held,) = await run.reach(Stage.RUN)

    assert await run.worker(Stage.RUN).give_up(held, kind="lost", retry_stage="init") == ["retry"]

    job = await run.audit.job(held.job)
    assert (job["lost"], job["failed"], job["src"]) == ("1", "0", "s:init")


async def test_the_pause_doubles_up_to_its_bound_and_is_promoted_when_due(run: Run) -> None:
    await run.accept(a_unit(), template=a_template(max_failed=100))
    worker = run.worker(Stage.INIT)
    pauses = []
    for _ in range(3):
        await worker.give_up(*await worker.take(), backoff_ms=1000)
        pauses.append(await due_ms(run) - await now_ms(run))
        assert await run.states() == {"delayed": 1}
        promoted, next_s = await run.scripts.promote()
        assert promoted == 0
        assert next_s is not None
        await ask(run.client, "ZADD", run.audit.keys.key("z:delay"), 1, held_job(run))
        assert await run.scripts.promote() == (1, None)
    assert pauses == [pytest.approx(pause, abs=200) for pause in (1000, 2000, 4000)]


async def test_the_pause_of_a_job_that_failed_a_thousand_times_is_its_bound(run: Run) -> None:
    """2 to the power of 1100 is infinite."""
    await run.accept(a_unit(), template=a_template(max_failed=10_000))
    await ask(run.client, "HSET", run.audit.keys.job(held_job(run)), "failed", 1100)
    worker = run.worker(Stage.INIT)

    assert await worker.give_up(*await worker.take(), backoff_ms=1000) == ["retry"]

    assert await due_ms(run) - await now_ms(run) == pytest.approx(60_000, abs=200)


async def test_a_retry_that_is_due_becomes_claimable(run: Run) -> None:
    await run.accept(a_unit())
    worker = run.worker(Stage.INIT)
    await worker.give_up(*await worker.take(), backoff_ms=30)

    async def promoted() -> bool:
        return (await run.scripts.promote())[0] == 1

    await wait_until(promoted, "the retry is due")
    assert len(await worker.take()) == 1


def held_job(run: Run) -> str:
    return run.units[0].id


async def due_ms(run: Run) -> float:
    """When the only delayed job is due."""
    return float(await ask(run.client, "ZSCORE", run.audit.keys.key("z:delay"), held_job(run)))


async def now_ms(run: Run) -> float:
    seconds, micros = await ask(run.client, "TIME")
    return float(seconds) * 1000 + float(micros) / 1000
