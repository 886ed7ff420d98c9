"""The last looks of `rollstream top` as a table: a quantity a row, as small blocks, with its last and its largest value. 80 columns."""

from __future__ import annotations

from rich.table import Table

from ops.top.history import KEPT, History, sparkline


def over_time(history: History, *, every_s: float) -> Table:
    """The table.

    Args:
        every_s: between two looks.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("over time")
    table.add_column(f"a look each {every_s:g} s, the last {KEPT}", width=KEPT, no_wrap=True)
    for name in ("now", "most"):
        table.add_column(name, justify="right", min_width=6, no_wrap=True)
    for row in history.rows():
        known = [value for value in row.values if value is not None]
        now = row.values[-1] if row.values else None
        table.add_row(row.name, sparkline(row.values).rjust(KEPT), short(now), short(max(known, default=None)))
    return table


def short(value: float | None) -> str:
    """A number in six columns; `-` where there is none."""
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            thousands = 1e3 if unit == "k" else size
            return f"{value / thousands:.1f}{unit}"
    return f"{value:.1f}" if value < 100 and value % 1 else f"{value:.0f}"
