"""`rollstream housekeeping run|list|once`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import orjson
import typer

from pipeline.counts import counted

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For a program.")]


@app.command("run")
def run(
    grace_s: Annotated[float, typer.Option("--grace", min=0, help="Seconds that jobs have to end after SIGTERM.")] = 30.0,
    log_json: Annotated[bool, typer.Option(help="Logs as JSON lines.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run one replica until SIGTERM: the cron, and workers for what any machine may do, for images, and for this machine. Any number may
    run, one a machine; none leads. Settings: [housekeeping] of the rollstream.toml here."""
    from ops.cli.connection import queue_settings
    from ops.housekeeping import HousekeepingQueue, HousekeepingSettings, run_replica
    from pipeline.logs import configure_logs

    configure_logs(as_json=log_json, level=log_level)
    with queue_settings() as queue, HousekeepingQueue(HousekeepingSettings.load(), queue) as housekeeping:
        run_replica(housekeeping, redis_url=queue.redis_url, grace_s=grace_s)


@app.command("list")
def list_jobs(as_json: Json = False) -> None:
    """All jobs: where and how often they run, how the last one went; and who does them. Ends with 1 when nobody does."""
    from rich.table import Table

    from ops.cli.connection import queue_settings
    from ops.console import open_console
    from ops.housekeeping import HousekeepingQueue, HousekeepingSettings
    from ops.housekeeping.look import look
    from ops.run_view import ago
    from ops.visible_text import visible_line

    with queue_settings() as queue, HousekeepingQueue(HousekeepingSettings.load(), queue) as housekeeping:
        found = look(housekeeping)
    if as_json:
        typer.echo(orjson.dumps(asdict(found)).decode())
    else:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("job", "every", "last", "state", "it found"):
            table.add_column(name, overflow="fold")
        for job in found.jobs:
            every = ago(job.every_s) if job.every_s else "-"
            if not job.last:
                table.add_row(job.name, every, "-", "-", job.does)
            for last in job.last:
                name = f"{job.name} @{last.node}" if last.node else job.name
                table.add_row(name, every, f"{ago(last.asked_s)} ago", last.state, visible_line(_words(last.found)))
        open_console().print(table)
        typer.echo("")
        for queue_name, workers in found.workers.items():
            typer.echo(f"{queue_name}: {counted(workers, 'worker')}, {counted(found.waiting[queue_name], 'job waits', 'jobs wait')}")
        typer.echo(
            "crons: " + ", ".join(f"{name} ({seconds:.0f} s ago)" for name, seconds in found.crons.items())
            if found.crons
            else "no cron runs: rollstream housekeeping run"
        )
    if not found.crons:
        raise typer.Exit(1)


@app.command("once")
def once(
    name: Annotated[str, typer.Argument(help="bodies, runs, streams, blobs, dead-letters, export, leftovers or images.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove and write nothing: say what would be.")] = False,
    as_json: Json = False,
) -> None:
    """Do one job now, in this process. It does not matter that a replica may do the same. Ends with 1 when a part of it failed."""
    from ops.housekeeping import a_workplace, job_named
    from ops.visible_text import visible_line

    job = job_named(name)
    with a_workplace(dry_run=dry_run) as place:
        found = asyncio.run(job(place))
    if as_json:
        typer.echo(orjson.dumps(found).decode())
    else:
        typer.echo(f"{name}{' (nothing was done)' if dry_run else ''}")
        for word, value in found.items():
            for line in _lines(word, value):
                typer.echo(f"  {visible_line(line)}")
    raise typer.Exit(1 if found.get("failed") else 0)


def _lines(word: str, value: Any) -> list[str]:
    """What a job found, a line a fact."""
    if isinstance(value, dict):
        return [line for name, inner in value.items() for line in _lines(f"{word} {name}", inner)] or [f"{word}: none"]
    if isinstance(value, list):
        return [
            f"{word}: " + " · ".join(f"{k} {v}" for k, v in one.items()) if isinstance(one, dict) else f"{word}: {one}" for one in value
        ]
    return [f"{word}: {value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{word}: {value}"]


def _words(found: Any) -> str:
    """The same on one line, cut."""
    if isinstance(found, dict):
        return " · ".join(f"{name} {value}" for name, value in found.items() if not isinstance(value, list | dict))[:120]
    return "" if found is None else str(found).strip().splitlines()[-1][:120]
