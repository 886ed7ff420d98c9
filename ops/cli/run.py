"""`rollstream run list|show|report|export|cancel|regrade|set`: training runs."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer

from ops.cli.cancel_reason import Reason, check_reason
from ops.cli.regrading import Config, Every, Parallel, Results
from pipeline.counts import counted

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For a program.")]


@app.command("list")
def list_runs(as_json: Json = False) -> None:
    """All runs that Redis knows: state, trainer, step, what is in flight."""
    from ops.cli.connection import connected
    from ops.console import open_console
    from ops.look import RunLook, look
    from ops.run_view import runs_table

    async def act() -> list[RunLook]:
        async with connected() as (settings, client):
            return (await look(client, settings)).runs

    runs = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps([asdict(run) for run in runs]).decode())
    elif runs:
        open_console().print(runs_table(runs))
    else:
        typer.echo("no run yet: a trainer makes one when it connects", err=True)
    if not runs:
        raise typer.Exit(1)


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="Its id.")],
    as_json: Json = False,
    watch: Annotated[bool, typer.Option(help="Again and again, until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between looks.")] = 2.0,
) -> None:
    """One run on a page: steps, groups and tokens by what became of them, monitors, why it waits, the last steps."""
    from rich.live import Live

    from ops.cli.connection import connected, keys_of
    from ops.console import open_console
    from ops.run_report import report_on
    from ops.run_view import report_page

    async def act() -> None:
        async with connected() as (settings, client):
            keys = keys_of(settings, run)
            if as_json:
                typer.echo(orjson.dumps((await report_on(client, settings, keys, run)).as_map()).decode())
            elif not watch or not sys.stdout.isatty():
                open_console().print(report_page(await report_on(client, settings, keys, run)))
            else:
                with Live(report_page(await report_on(client, settings, keys, run)), screen=True, auto_refresh=False) as live:
                    while True:
                        await asyncio.sleep(every_s)
                        live.update(report_page(await report_on(client, settings, keys, run)), refresh=True)

    try:
        asyncio.run(act())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@app.command("report")
def report(
    run: Annotated[str, typer.Argument(help="Its id.")],
    to: Annotated[Path, typer.Option(help="The HTML file to write.")],
    export_dir: Annotated[Path | None, typer.Option("--export", help="An export of this run, for what was acknowledged since.")] = None,
) -> None:
    """Write one HTML page about a run: throughput, times, rewards, where its tokens went, monitors. It needs no network."""
    from ops.cli.connection import connected, keys_of
    from ops.report import gather, page
    from pipeline.errors import InvalidRequest

    async def act() -> str:
        async with connected() as (settings, client):
            return page(await gather(client, settings, keys_of(settings, run), run, export_dir))

    text = asyncio.run(act())
    beside = to.with_name(f".{to.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(to)
    except OSError as error:
        raise InvalidRequest(f"{to}: {error.strerror}: name a file in a folder that is there", field="--to") from error
    typer.echo(f"{to}: {len(text.encode()) / 1024:.0f} KiB")


@app.command("export")
def export(
    run: Annotated[str, typer.Argument(help="Its id.")],
    to: Annotated[Path, typer.Option(help="A folder, one a run; made when missing. The same again: what is new.")],
    format_: Annotated[str, typer.Option("--format", help="parquet or jsonl.")] = "parquet",
    cancelled: Annotated[bool, typer.Option("--cancelled", help="Also jobs that were cancelled.")] = False,
    as_json: Json = False,
) -> None:
    """Write the results of a run that are not acknowledged into files: trajectories with token arrays, groups, steps. Goes on behind what
    the folder has; ends with 1 when a record or body could not be read."""
    from ops.cli.connection import connected, keys_of
    from ops.export import Exported, ExportWishes, export_run
    from ops.visible_text import visible_line

    if format_ not in ("parquet", "jsonl"):
        raise typer.BadParameter("must be parquet or jsonl", param_hint="--format")
    wishes = ExportWishes(format="jsonl" if format_ == "jsonl" else "parquet", cancelled=cancelled)

    def tell(name: str, rows: int) -> None:
        if not as_json and sys.stderr.isatty():
            typer.echo(f"{name}: {rows:,}", err=True)

    async def act() -> Exported:
        async with connected() as (settings, client):
            return await export_run(client, keys_of(settings, run), run, to, wishes, progress=tell)

    done = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps(done.as_map()).decode())
    else:
        typer.echo(f"{to}: " + ", ".join(f"{rows:,} {name}" for name, rows in done.rows.items()) + f" in {done.parts} new parts")
        if done.without_trajectory:
            typer.echo(f"  {counted(done.without_trajectory, 'job')} without a trajectory: it was filtered or acknowledged before")
        if done.left_out:
            typer.echo(f"  {done.left_out:,} cancelled jobs are left out; --cancelled takes them")
        for problem in done.unreadable:
            typer.echo(f"  cannot be read: {visible_line(problem)}", err=True)
    if done.unreadable:
        raise typer.Exit(1)


@app.command("cancel")
def cancel(
    run: Annotated[str, typer.Argument(help="Its id.")],
    step: Annotated[int | None, typer.Option(help="Cancel this step only: it ends short with what it has.")] = None,
    reason: Reason = "user",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Cancel all jobs of a run, and let it take no more: waiting ones end at once, running ones within a second. A trainer that
    connects again opens it again."""
    from ops.cli.connection import connected, keys_of
    from ops.look import RunLook, look_at_run
    from ops.run_report import UnknownRun
    from pipeline.scripts import Scripts
    from pipeline.scripts.step_calls import StepScripts

    check_reason(reason)

    async def find() -> RunLook:
        async with connected() as (settings, client):
            found = await look_at_run(client, keys_of(settings, run), run)
            if found is None:
                raise UnknownRun(run)
            return found

    async def act() -> dict[str, int]:
        async with connected() as (settings, client):
            keys = keys_of(settings, run)
            if step is not None:
                return await StepScripts(client, keys).cancel_step(run, found.incarnation, step, reason)
            return await Scripts(client, keys).cancel("run", [run], reason)

    what = f"run {run}" if step is None else f"step {step} of run {run}"
    found = asyncio.run(find())
    if not yes:
        words = f"{counted(found.waiting, 'job')} queued, {found.in_flight} in flight, trainer heard {found.contact_s:.0f} s ago"
        if not sys.stdin.isatty():
            raise typer.BadParameter(f"nobody can be asked here ({words}): say --yes", param_hint="--yes")
        typer.confirm(f"Cancel {what} ({found.state}: {words})?", abort=True)
    counts = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps(counts).decode())
    else:
        typer.echo(
            f"{what} cancelled ({reason}): {counted(counts['settled'], 'job')} ended at once, {counts['running']} told to stop, "
            f"{counts['done']} had ended"
        )


@app.command("regrade")
def regrade(
    run: Annotated[str, typer.Argument(help="Its id.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.")] = None,
    since_h: Annotated[float | None, typer.Option(min=0, help="Only those that ended in the last so many hours.")] = None,
    parallel: Parallel = None,
    results: Results = None,
    every: Every = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Judge the jobs of a run again that are not acknowledged, without RUN, by the graders and in the sandboxes that are here, and show
    what changed. It replaces nothing. Exit codes as of `job regrade`."""
    from ops.cli.regrading import Wanted, regrade_command

    wanted = Wanted(run=run, limit=limit, since_h=since_h)
    regrade_command(wanted, parallel=parallel, results=results, every=every, as_json=as_json, config=config)


@app.command("set")
def set_share(
    run: Annotated[str, typer.Argument(help="Its id.")],
    weight: Annotated[float | None, typer.Option(min=0.001, max=1000, help="Its share among runs, while workers are scarce.")] = None,
    quota: Annotated[int | None, typer.Option(min=0, max=10_000_000, help="Most of its jobs in flight; 0 = no bound.")] = None,
    paused: Annotated[
        bool | None, typer.Option("--pause/--resume", help="Admit nothing of it, or go on. What is in flight runs on.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Change what a run may have, while it runs. It lasts until its trainer connects and names weight or quota itself."""
    from ops.cli.connection import connected, keys_of
    from ops.run_report import UnknownRun
    from pipeline.errors import RunClosed
    from pipeline.scripts.run_calls import RunScripts, RunShare

    async def act() -> RunShare:
        async with connected() as (settings, client):
            scripts = RunScripts(client, keys_of(settings, run))
            return await scripts.set_run(run, weight=weight, quota=quota, paused=paused, window=settings.admit_window)

    try:
        share = asyncio.run(act())
    except RunClosed as error:
        raise UnknownRun(run) from error
    if as_json:
        typer.echo(orjson.dumps(asdict(share)).decode())
    else:
        quota_words = f"quota {counted(share.quota, 'job')} in flight" if share.quota else "no quota"
        typer.echo(f"run {run} ({share.state}{', paused' if share.paused else ''}): weight {share.weight:g}, {quota_words}")
