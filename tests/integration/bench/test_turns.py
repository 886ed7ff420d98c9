"""The benchmark of turns measures whole dialogues of the size it says, on both sides."""

from __future__ import annotations

import pytest

from ops.bench.turns_agent import SAMPLED, BenchDialogue
from ops.bench.turns_bench import BOUNDS, COMPARED_AT, CONTEXTS, TURNS, Figures, measure, report_of
from workers.llm.scripted import InProcessBackend, ServerOptions
from workers.llm.tokenizer import load


async def test_a_dialogue_has_its_context_in_the_middle_and_runs_its_calls() -> None:
    dialogue = BenchDialogue(load(), context=4_000, turns=TURNS)

    record = await dialogue.hold(InProcessBackend(dialogue.turns, options=ServerOptions(max_model_len=131_072)))

    assert [(turn.end - turn.start, turn.finish, turn.tool_calls, turn.tool_errors) for turn in record.turns] == [
        (SAMPLED, "stop", 1, 0)
    ] * TURNS
    assert abs(record.turns[TURNS // 2].start - 4_000) < 400


@pytest.mark.slow
async def test_turns_of_both_sides_are_measured_beside_each_other() -> None:
    figures = await measure(lambda _: None, (1_000, COMPARED_AT), rounds=1)

    assert [len(values) for values in (*figures.ours.values(), figures.proxy)] == [1, 1, 1]
    assert 0 < min(figures.ours[COMPARED_AT]) < min(figures.proxy)


def test_the_report_bounds_the_cost_of_a_turn_and_how_it_grows() -> None:
    figures = Figures({context: [9.0, cost] for context, cost in zip(CONTEXTS, (0.5, 0.8, 2.0, 7.0), strict=True)}, proxy=[9.0, 5.6])

    report = report_of(figures)

    assert all(report.holds(metric) for metric in BOUNDS)
    assert (report.metrics["turn_4k_ms"], report.metrics["growth_16k_to_64k_ratio"]) == (0.8, 3.5)
    assert report.metrics["proxy_to_ours_ratio"] == pytest.approx(7.0)
