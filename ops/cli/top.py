"""`rollstream top`: a live view in the terminal, fine at 80 columns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ops.look import Look, RunLook, look
from ops.run_view import shares

BAR = 24


def top(
    every_s: Annotated[float, typer.Option("--every", help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="One look, then end; also what happens without a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One look as JSON.")] = False,
) -> None:
    """Show stages, runs and steps until Ctrl-C."""
    from ops.cli.connection import connected

    async def act() -> None:
        async with connected() as (settings, client):
            if as_json:
                typer.echo(orjson.dumps(asdict(await look(client, settings)), option=orjson.OPT_NON_STR_KEYS).decode())
                return
            if once or not sys.stdout.isatty():
                Console().print(screen(await look(client, settings)))
                return
            with Live(screen(await look(client, settings)), screen=True, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(every_s)
                    live.update(screen(await look(client, settings)), refresh=True)

    try:
        asyncio.run(act())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def screen(found: Look) -> Group:
    """One look as a picture."""
    stages = Table(box=None, pad_edge=False)
    for name in ("stage", "waiting", "running", "slots", "workers", ""):
        stages.add_column(name, justify="left" if name in ("stage", "") else "right")
    for stage, seen in found.stages.items():
        filled = 0 if not seen.slots else round(BAR * min(1.0, seen.running / seen.slots))
        stages.add_row(
            stage.value.upper(),
            str(seen.waiting),
            str(seen.running),
            str(seen.slots),
            str(seen.workers),
            "█" * filled + "·" * (BAR - filled),
        )
    memory = f"{found.used_bytes / 2**20:.0f} MiB" + (f" of {found.max_bytes / 2**20:.0f}" if found.max_bytes else "")
    last = Text(f"delayed retries {found.delayed} · dead letters {found.dead} · Redis {memory}")
    return Group(stages, Text(""), *(_run_lines(found.runs) or [Text("no run yet")]), Text(""), last)


def _run_lines(runs: Sequence[RunLook]) -> list[Text]:
    lines = []
    for run in runs:
        about = f"  starved ({run.shortage})" if run.shortage else ""
        ended = " ".join(f"{name} {count}" for name, count in run.outcomes.items()) or "nothing ended"
        counts = f"queue {run.waiting}  in flight {run.in_flight}  prompts {run.reserve}"
        lines.append(Text(f"run {run.name}  {run.state}  {counts}  {ended}{about}"))
        if run.tokens:
            lines.append(Text("  tokens: " + " · ".join(shares(run.tokens))))
        for step in run.steps:
            dots = "●" * step.accepted + "○" * max(0, step.target - step.accepted) if step.target <= 64 else ""
            lines.append(Text(f"  step {step.index}: {step.accepted} of {step.target} groups of {step.n}  {dots}"))
    return lines
