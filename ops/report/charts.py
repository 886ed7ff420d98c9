"""Charts as SVG in a page: lines, bars, shares. No script; every text goes through `escape`. Sizes are of a view box, which the page
scales."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 680, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 30
EDGE = 20
"""Half of a long label."""
COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")
"""Classes of the page's style sheet."""


def number(value: float) -> str:
    """Short, for an axis or a cell: 12,300 as 12.3k."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    size = abs(value)
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[tuple[float, str]],
    y_most: float | None = None,
) -> str:
    """One or more lines over one axis.

    Args:
        series: name -> (x, y), x ascending.
        x_ticks: where the axis is labelled, and how.
        y_most: upper end of the y axis; None = a round number above the largest value.
    """
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low = min(0.0, *(y for _, y in points)) if len(points) > 1 else min(0.0, points[0][1])
    y_high = y_most if y_most is not None else _round_above(max(y for _, y in points))
    if y_high <= y_low:
        y_high = y_low + 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [_frame(y_low, y_high, y_label, x_label)]
    for x, words in x_ticks:
        place = at(x, 0)[0]
        anchor = "end" if place > WIDTH - RIGHT - EDGE else "middle"  # the last one would be cut off
        parts.append(f'<text class="tick" x="{place:.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="{anchor}">{escape(words)}</text>')
    for order, (name, line) in enumerate(series.items()):
        colour = COLOURS[order % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line))
        parts.append(f'<polyline class="line {colour}" points="{path}"><title>{escape(name)}</title></polyline>')
        if len(line) <= 60:
            parts += [
                f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{escape(name)}: {number(value)}</title></circle>'
                for (x, y), (_, value) in zip((at(*point) for point in line), line, strict=True)
            ]
    return _svg(parts, f"{y_label} over {x_label}") + (legend(list(series)) if len(series) > 1 else "")


def bar_chart(bars: Sequence[tuple[str, float, str]], *, x_label: str, y_label: str) -> str:
    """A bar each of (label, height, what it says); labels are thinned out to what has room."""
    if not bars:
        return ""
    y_high = _round_above(max(height for _, height, _ in bars)) or 1.0
    room = (WIDTH - LEFT - RIGHT) / len(bars)
    every = max(1, math.ceil(len(bars) / 10))
    parts = [_frame(0.0, y_high, y_label, x_label)]
    for place, (label, height, says) in enumerate(bars):
        x, tall, wide = LEFT + place * room, height / y_high * (HEIGHT - TOP - BOTTOM), room * 0.84
        parts.append(
            f'<rect class="fill c0" x="{x + room * 0.08:.1f}" y="{HEIGHT - BOTTOM - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
            f"<title>{escape(says)}</title></rect>"
        )
        if place % every == 0:
            parts.append(
                f'<text class="tick" x="{x + room / 2:.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle">{escape(label)}</text>'
            )
    return _svg(parts, f"{y_label} by {x_label}")


def shares_chart(rows: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str], *, y_label: str, x_label: str) -> str:
    """A full bar a row, cut into shares of names."""
    rows = [(label, counts) for label, counts in rows if sum(counts.values()) > 0]
    if not rows:
        return ""
    room = (WIDTH - LEFT - RIGHT) / len(rows)
    every = max(1, math.ceil(len(rows) / 10))
    parts = [_frame(0.0, 1.0, y_label, x_label, percent=True)]
    for place, (label, counts) in enumerate(rows):
        whole, below = sum(counts.values()), 0.0
        for name in names:
            share = counts.get(name, 0.0) / whole
            tall = share * (HEIGHT - TOP - BOTTOM)
            if share:
                parts.append(
                    f'<rect class="fill {COLOURS[list(names).index(name) % len(COLOURS)]}" x="{LEFT + place * room + room * 0.05:.1f}" '
                    f'y="{HEIGHT - BOTTOM - below - tall:.1f}" width="{room * 0.9:.1f}" height="{tall:.1f}">'
                    f"<title>{escape(label)}: {escape(name)} {share:.0%}</title></rect>"
                )
            below += tall
        if place % every == 0:
            x = LEFT + (place + 0.5) * room
            parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle">{escape(label)}</text>')
    return _svg(parts, f"{y_label} by {x_label}") + legend(names)


def share_bar(counts: Mapping[str, float]) -> str:
    """One flat bar of shares, with its legend and figures."""
    whole = sum(counts.values())
    if whole <= 0:
        return ""
    parts, x = [], 0.0
    for place, (name, count) in enumerate(counts.items()):
        wide = count / whole * WIDTH
        parts.append(
            f'<rect class="fill {COLOURS[place % len(COLOURS)]}" x="{x:.1f}" y="0" width="{wide:.1f}" height="22">'
            f"<title>{escape(name)} {count / whole:.1%}</title></rect>"
        )
        x += wide
    svg = f'<svg viewBox="0 0 {WIDTH} 22" role="img" aria-label="shares">{"".join(parts)}</svg>'
    return svg + legend([f"{name} {number(count)} ({count / whole:.0%})" for name, count in counts.items()])


def legend(names: Sequence[str]) -> str:
    """What the colours mean."""
    items = (f'<li><span class="key {COLOURS[place % len(COLOURS)]}"></span>{escape(name)}</li>' for place, name in enumerate(names))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _frame(y_low: float, y_high: float, y_label: str, x_label: str, *, percent: bool = False) -> str:
    parts = []
    for place in range(5):
        value = y_low + (y_high - y_low) * place / 4
        y = HEIGHT - BOTTOM - place / 4 * (HEIGHT - TOP - BOTTOM)
        words = f"{value:.0%}" if percent else number(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{words}</text>')
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    parts.append(
        f'<text class="label" x="11" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 11 {middle:.0f})">{escape(y_label)}</text>'
    )
    parts.append(f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _svg(parts: Sequence[str], says: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(says)}">{"".join(parts)}</svg>'


def _round_above(value: float) -> float:
    if value <= 0 or not math.isfinite(value):
        return 0.0
    scale = 10 ** math.floor(math.log10(value))
    return float(next(step * scale for step in (1, 2, 2.5, 4, 5, 8, 10) if step * scale >= value * 0.999999))


__all__ = ["bar_chart", "legend", "line_chart", "number", "share_bar", "shares_chart"]
