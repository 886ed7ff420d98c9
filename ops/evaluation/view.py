"""An evaluation on a terminal: how far it is, and what came out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ops.evaluation.evaluate import Standing
from ops.evaluation.numbers import Numbers
from ops.evaluation.plan import Plan
from ops.visible_text import visible_line

REASONS_SHOWN = 5


def standing_line(plan: Plan, standing: Standing) -> str:
    """One line."""
    found = standing.statistics
    ended = sum(found.outcomes.values())
    passed = f", {standing.n_passed / standing.n_valid:.0%} of their {standing.n_valid:,} valid samples pass" if standing.n_valid else ""
    return (
        f"{plan.task}: {standing.rows_done:,} of {standing.rows_asked:,} rows written{passed} · {ended:,} rollouts ended, "
        f"{found.in_flight:,} in flight, {found.waiting:,} waiting"
    )


def results_table(plan: Plan, numbers: Numbers, file: Path) -> Group:
    """The table, and what there is to know about it."""
    table = Table(box=None, pad_edge=False)
    for name in (plan.task, "", "95 % interval", "rows"):
        table.add_column(name, justify="left" if name == plan.task else "right")
    for name, estimate in numbers.estimates.items():
        value = "none" if estimate.value is None else f"{estimate.value:.4f}"
        interval = "" if estimate.interval is None else f"{estimate.interval[0]:.4f} to {estimate.interval[1]:.4f}"
        table.add_row(name, value, interval, f"{estimate.prompts:,} of {estimate.prompts_asked:,}")
    return Group(table, *_notes(numbers, file))


def _notes(numbers: Numbers, file: Path) -> Iterable[Text]:
    yield Text(
        f"{numbers.valid:,} of {numbers.asked:,} samples valid · {numbers.sampled_tokens:,} tokens sampled · {visible_line(str(file))}"
    )
    for why, count in [*numbers.why_invalid.items()][:REASONS_SHOWN]:
        yield Text(f"  not valid, {count:,} times: {visible_line(why)[:300]}")
