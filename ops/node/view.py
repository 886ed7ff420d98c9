"""Nodes as people and programs read them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ops.node.reading import NodeView
from ops.node.sizes import Size
from ops.visible_text import visible_line
from pipeline.errors import InvalidRequest
from pipeline.messages import Stage

GIB = 2**30


def as_map(view: NodeView) -> dict[str, object]:
    """For a program: every field as it stands in Redis, and what follows from them."""
    return {
        "node": view.name,
        "state": view.state,
        "silent_ms": view.silent_ms,
        "left_ms": view.left_ms,
        "skew_ms": view.skew_ms,
        "processes": [{"name": each.name, "pid": each.pid, "state": each.state} for each in view.processes],
        "fields": dict(view.fields),
    }


def as_table(views: Sequence[NodeView]) -> list[str]:
    """A line a node."""
    rows: list[tuple[str, ...]] = [("node", "state", "INIT", "RUN", "EVAL", "left", "sandboxes", "host")]
    for view in views:
        left = view.left_ms
        rows.append(
            (
                view.name,
                f"{view.state} {age(view.silent_ms)}" if view.is_lost else view.state,
                *(_slots(view, stage) for stage in Stage),
                age(left) if left is not None and view.is_alive else "-",
                "degraded" if view.fields.get("degraded") else view.fields.get("backend", "") or "-",
                view.fields.get("host", ""),
            )
        )
    widths = [max(len(visible_line(row[column])) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(visible_line(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def as_text(view: NodeView) -> list[str]:
    """All of one node."""
    said = view.fields
    why = f" ({said['why']})" if said.get("why") else ""
    slurm = f", Slurm job {said['slurm']}" if said.get("slurm") else ""
    left = view.left_ms
    lines = [f"node      {view.name}: {view.state}{why}, last word {age(view.silent_ms)} ago"]
    lines.append(
        f"launcher  process {said.get('pid', '?')} on {said.get('host', '?')}, user {said.get('uid', '?')}, "
        f"version {said.get('version', '?')}{slurm}"
    )
    ends = "not known" if left is None else f"in {age(left)}" if left >= 0 else "over"
    lines.append(f"end       {ends}; a drain takes at most {said.get('grace', '?')} s")
    lines += [f"serves    run {said['serves']}: {said.get('servers') or 'no server yet'}"] if said.get("serves") else _stages(view)
    if said.get("degraded"):
        lines.append(f"          degraded, none are started: {said['degraded']}")
    scratch, images = view.number("scratch.free"), view.number("images.free")
    if scratch is not None and images is not None:
        lines.append(f"disks     {scratch / GIB:,.1f} GiB free for scratch, {images / GIB:,.1f} GiB for images")
    if (skew := view.skew_ms) is not None and abs(skew) > 2000:
        lines.append(f"clock     {abs(skew) / 1000:.1f} s {'ahead of' if skew > 0 else 'behind'} Redis")
    if said.get("metrics"):
        lines.append(f"metrics   {said['metrics']}")
    for each in view.processes:
        lines.append(f"process   {each.name} {each.state}, pid {each.pid}")
    if said.get("crash.name"):
        code = view.number("crash.code")
        how = "?" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
        lines.append(f"crashes   {said.get('crashes', '?')}, the last of {said['crash.name']} ({how}); its last lines:")
        lines += [f"  {line}" for line in said.get("crash.tail", "").splitlines()]
    return [visible_line(line) for line in lines]


def _stages(view: NodeView) -> list[str]:
    classes = view.fields.get("classes", "")
    return [
        *(f"{stage.value.upper():9} {view.slots(stage)} slots take jobs, {view.size(stage) or '0'} wanted" for stage in Stage),
        f"sandboxes {view.fields.get('backend') or 'no service answers'}{f' ({classes})' if classes else ''}",
    ]


def age(ms: float) -> str:
    """A stretch of time, as short as it can be read."""
    seconds = max(0, round(ms / 1000))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def _slots(view: NodeView, stage: Stage) -> str:
    now, size = view.slots(stage), view.size(stage)
    return str(now) if not view.is_alive or wanted_slots(size) == now else f"{now} of {size or 0}"


def wanted_slots(size: str) -> int | None:
    """Of a size as a node tells it; None when it is none."""
    with contextlib.suppress(InvalidRequest):
        return Size.parse(size).total
    return None
