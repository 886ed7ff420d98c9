"""A regrade for people: a line a job that changed, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ops.regrade.cases import NOT_KEPT
from ops.regrade.difference import Change, Found, Regraded, Summary
from ops.visible_text import visible_line

LONGEST_REASON = 200
LONGEST_ERROR = 1000


def line_of(one: Regraded) -> str:
    """One job: what its grade was and is, and each part and reason that changed."""
    job = visible_line(one.job)
    if one.change is Change.SKIPPED:
        return f"{job}  skipped: {visible_line(one.skipped)}"
    if one.change is Change.ERROR:
        return f"{job}  error: {visible_line(one.error)[:LONGEST_ERROR]}"
    parts = [f"{job}  {one.change.value}  {_reward(one.before)} → {_reward(one.after)}"]
    parts += _components(one.before.components, one.after.components)
    if one.change is Change.FIRST:
        parts.append(f"was {one.outcome or 'not ended'}")
    if one.after.reason != one.before.reason:
        parts.append(f"reason: {_reason(one.before)} → {_reason(one.after)}")
    if one.has_other_inputs:
        parts.append("ANOTHER ANSWER than was judged then")
    return "  ".join(parts)


def _reward(found: Found) -> str:
    return "none" if found.reward is None else f"{found.reward:g}"


def _reason(found: Found) -> str:
    return visible_line(found.reason)[:LONGEST_REASON] or "none"


def _components(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield f"{visible_line(name)} {'none' if old is None else f'{old:g}'} → {'none' if new is None else f'{new:g}'}"


def summary_lines(summary: Summary, *, seconds: float) -> Iterator[str]:
    """What it comes to."""
    if not summary.jobs:
        yield f"there is nothing to judge: no ended job is kept whose result waits for its trainer. {NOT_KEPT}"
        return
    counts = summary.counts
    graders = ", ".join(map(visible_line, summary.graders_after)) or "no grader"
    before = ", ".join(map(visible_line, summary.graders_before)) or "none"
    yield f"{summary.judged} judged again by {graders} (then: {before}) in {seconds:.1f} s"
    yield (
        f"{counts['same']} same · {counts['up']} up · {counts['down']} down · {counts['parts']} with other components · "
        f"{counts['first']} that had no grade · {counts['error']} errors · {counts['skipped']} skipped"
    )
    for reason in summary.skipped:
        example = f"such as {visible_line(reason.example)}" if reason.count > 1 else visible_line(reason.example)
        yield f"skipped {reason.count:,}, {example}: {visible_line(reason.why)}"
    if summary.mean_before is not None and summary.mean_after is not None:
        yield f"mean reward {summary.mean_before:.4f} → {summary.mean_after:.4f}"
    if summary.other_reasons:
        yield f"{summary.other_reasons} with another reason"
    if summary.other_inputs:
        yield f"{summary.other_inputs} with ANOTHER ANSWER than was judged then: their differences say nothing of the grader"
