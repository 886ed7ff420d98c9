"""Tasks and their rows in words, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ops.tasks.listing import ListedTask, SandboxesHere
from ops.tasks.preflight import CheckedRow, Preflight
from ops.visible_text import visible, visible_line
from workers.sandbox.spec import Isolation, SandboxSpec

ROWS_NAMED = 20
WARNINGS_SHOWN = 50


def task_lines(tasks: Sequence[ListedTask], here: SandboxesHere | None) -> Iterator[str]:
    """The list."""
    for task in tasks:
        yield f"{task.name}{'' if task.is_built_in else '  (installed)'}"
        if task.broken:
            yield f"    cannot be loaded: {visible_line(task.broken)}"
            continue
        if task.about:
            yield f"    {visible_line(task.about)}"
        yield f"    rows: {', '.join(task.layouts) or 'as the task reads them'} · {task.samples:,} samples"
        yield f"    sandbox: {sandbox_words(task.sandbox, here) if task.samples else 'as the row says'}"
    if here is not None and not here.backend:
        yield visible(here.why)


def sandbox_words(wanted: SandboxSpec | None, here: SandboxesHere | None) -> str:
    """What is needed, and whether it is to be had here."""
    if wanted is None:
        return "none"
    asked = "one of any kind" if wanted.isolation is Isolation.NONE else wanted.isolation.value
    asked += f", image {visible_line(wanted.image)}" if wanted.image else ""
    if here is None:
        return asked
    if not here.backend:
        return f"{asked}; no backend works here"
    return (
        f"{asked}; {here.backend} serves it here" if here.serves(wanted) else f"{asked}; {here.backend}, which serves here, has none such"
    )


def task_as_map(task: ListedTask, here: SandboxesHere | None) -> dict[str, Any]:
    """The same for a program."""
    sandbox: dict[str, object] | None = None
    if task.sandbox is not None:
        sandbox = {"isolation": task.sandbox.isolation.value, "image": task.sandbox.image, "limits": asdict(task.sandbox.limits)}
        if here is not None:
            sandbox |= {"here": here.serves(task.sandbox), "backend": here.backend}
    return {
        "name": task.name,
        "built_in": task.is_built_in,
        "broken": task.broken,
        "about": task.about,
        "layouts": list(task.layouts),
        "samples": task.samples,
        "sandbox": sandbox,
    }


def preflight_lines(found: Preflight) -> Iterator[str]:
    """What failed and what each scored, what graders noticed, then the counts."""
    for row in found.failed:
        yield f"{visible_line(row.row)}: {'; '.join(row.faults)}"
        yield from (f"    {line}" for line in _reasons(row))
    yield from _warning_lines(found)
    without = found.without_gold
    if without:
        yield f"{len(without):,} rows hold no reference: {_named([row.row for row in without])}"
    graded = len(found.checked) - len(without)
    yield (
        f"{found.task}: {len(found.checked):,} rows, "
        f"{len(found.checked) - len(found.failed):,} as they should be, {len(found.failed):,} not; "
        f"{graded:,} references graded"
    )


def _warning_lines(found: Preflight) -> Iterator[str]:
    """What graders noticed, each once with the rows: an image may be that of thousands."""
    rows: dict[str, list[str]] = {}
    for row in found.warned:
        for warning in row.warnings:
            rows.setdefault(warning, []).append(row.row)
    for warning, some in [*rows.items()][:WARNINGS_SHOWN]:
        yield f"noticed: {visible_line(warning)} ({_named(some)})"
    if len(rows) > WARNINGS_SHOWN:
        yield f"noticed: {len(rows) - WARNINGS_SHOWN:,} more; --json has all"


def _named(rows: Sequence[str]) -> str:
    return ", ".join(map(visible_line, rows[:ROWS_NAMED])) + (", ..." if len(rows) > ROWS_NAMED else "")


def preflight_as_map(found: Preflight) -> dict[str, Any]:
    """The same for a program."""
    return {
        "task": found.task,
        "rows": len(found.checked),
        "passed": found.passed,
        "without_reference": [row.row for row in found.without_gold],
        "warnings": {row.row: list(row.warnings) for row in found.warned},
        "failed": [
            {
                "row": row.row,
                "faults": list(row.faults),
                "gold": None if row.gold is None else {"reward": row.gold.reward, "why": row.gold.why, "seconds": row.gold.seconds},
                "empty": {"reward": row.empty.reward, "why": row.empty.why, "seconds": row.empty.seconds},
            }
            for row in found.failed
        ],
    }


def _reasons(row: CheckedRow) -> Iterator[str]:
    if row.gold is not None and row.gold.reward != 1.0 and row.gold.why:
        yield f"reference: {visible_line(row.gold.why)}"
    if row.empty.reward != 0.0 and row.empty.why and row.empty != row.gold:
        yield f"empty: {visible_line(row.empty.why)}"
