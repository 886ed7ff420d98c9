"""The sandboxes of a node, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import starmap

from ops.visible_text import visible_line
from pipeline.messages import Json
from workers.sandbox.limits.verdicts import size_text
from workers.sandbox.service.views import SandboxView
from workers.sandbox.use import SandboxUse

COLUMNS = ("SANDBOX", "STATE", "JOB", "ATTEMPT", "BACKEND", "IMAGE", "AGE", "WORKER")


def as_map(view: SandboxView) -> Json:
    """One sandbox as values."""
    return asdict(view)


def as_table(found: Sequence[SandboxView]) -> list[str]:
    """One line a sandbox, below a line of titles."""
    rows = [
        (
            view.sandbox_id,
            view.state,
            view.job_id,
            str(view.attempt),
            view.backend,
            view.image or "(node)",
            age(view.age_s),
            str(view.worker_pid or "-"),
        )
        for view in found
    ]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in (COLUMNS, *rows)]


def as_text(view: SandboxView) -> list[str]:
    """All that is known of one sandbox."""
    who = f"process {view.worker_pid or '(unknown)'} (boot {view.worker_boot or 'unknown'})" if view.state == "attached" else "nobody"
    lines = [
        f"sandbox    {view.sandbox_id}: {view.state}, {age(view.age_s)} old",
        f"job        {view.job_id}, made by attempt {view.attempt}, last seen {view.seen_attempt}",
        f"attached   to {who}",
        f"backend    {view.backend}, isolation {view.isolation or 'unknown'}, image {view.image or '(the files of the node)'}",
        "limits     " + ("; ".join(starmap(_limit, view.limits.items())) or "none"),
        *(visible_line(line) for line in (use_lines(view.use) if view.use is not None else ["enforced   nobody is attached"])),
        f"running    {len(view.processes)}",
    ]
    return lines + [f"           {visible_line(process)}" for process in view.processes]


def use_lines(use: SandboxUse) -> list[str]:
    """What is enforced by what, what was used, and what was done about it: a line each."""
    figures = [
        f"memory {size_text(use.memory_peak_bytes)} at most",
        f"{use.processes_peak} processes and threads at most",
        f"{use.cpu_s:.1f} s of CPU time",
        f"disk {size_text(use.disk_bytes)} in {use.files} files",
    ]
    if use.network_bytes or use.network_refused:
        figures.append(f"network {size_text(use.network_bytes)}, {use.network_refused} requests refused")
    enforced = "; ".join(f"{limit}: {means}" for limit, means in use.enforced.items())
    return [f"enforced   {enforced or 'not told'}", f"used       {', '.join(figures)}", *(f"limit met  {notice}" for notice in use.notices)]


def _limit(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{name.removesuffix('_bytes')}: {size_text(value)}"
    return f"{name}: {value}"


def age(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
