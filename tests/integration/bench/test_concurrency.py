"""The limit on modelled engines: what it gives up against fixed slots, whether it swings, what many processes come to."""

from __future__ import annotations

import pytest

from ops.bench.concurrency_bench import (
    LINE,
    MEMORY,
    SCENARIOS,
    SLOTS,
    fairness,
    many_processes,
    moves_without_news,
    simulate,
    steady_swing,
    swing,
)
from ops.bench.concurrency_engine import Engine, EngineCall

pytestmark = pytest.mark.slow


def test_it_gives_the_tokens_of_many_slots_and_the_groups_of_few() -> None:
    few, many, ours = (
        simulate(SCENARIOS["memory"], slots=slots, adaptive=adaptive).outcome
        for slots, adaptive in ((8, False), (SLOTS, False), (SLOTS, True))
    )

    assert ours.tokens_s > 1.5 * few.tokens_s
    assert ours.tokens_s > 0.9 * many.tokens_s
    assert ours.group_s < 0.5 * many.group_s
    assert ours.preemptions < 0.5 * many.preemptions


def test_it_follows_a_server_that_joins() -> None:
    limits = simulate(SCENARIOS["joins"], slots=SLOTS, adaptive=True).limits

    alone, both = limits[300:600], limits[700:1400]
    assert sum(both) / len(both) > 1.6 * sum(alone) / len(alone)


def test_it_follows_a_server_that_dies() -> None:
    limits = simulate(SCENARIOS["dies"], slots=SLOTS, adaptive=True).limits

    assert sum(limits[610:640]) / 30 < 0.7 * sum(limits[500:590]) / 90


def test_it_does_not_swing() -> None:
    assert steady_swing() <= 0.2
    assert swing([8, 8, 16, 16]) == pytest.approx(1 / 3), "that the measure can fail"


def test_processes_share_by_their_slots_and_are_together_as_one() -> None:
    together, alike = many_processes()

    assert 0.75 < fairness() < 1.33
    assert 0.85 < together < 1.15
    assert alike > 0.6


def test_nothing_moves_without_news() -> None:
    assert moves_without_news() == 0


def test_the_modelled_engine_preempts_the_last_call_and_computes_it_again() -> None:
    """The figures rest on it."""
    engine = Engine("e", MEMORY)
    first, last = (EngineCall(job, MEMORY.kv_tokens / 2 - 400, 5000) for job in (1, 2))
    for call in (first, last):
        engine.begin(call)
    for _ in range(2000):
        engine.tick(0.1)
        if engine.preemptions:
            break

    assert (engine.running, list(engine.waiting)) == ([first], [last])
    prefilled = engine.prefilled
    while first in engine.running:
        engine.tick(0.1)
    engine.tick(0.1)
    assert engine.running == [last]
    assert engine.prefilled == pytest.approx(prefilled + last.context, rel=0.01)


def test_the_modelled_engine_finds_the_prefix_of_a_job_again_while_there_is_room() -> None:
    engine = Engine("e", LINE)
    engine.begin(EngineCall(1, 1000, 10))
    while not engine.tick(0.1):
        continue

    engine.begin(EngineCall(1, 1200, 10))
    engine.tick(0.1)

    assert engine.prefilled == pytest.approx(1000 + 190, abs=1)
