"""`rollstream dead list|show|replay|drop`: jobs that no retry could help."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import orjson
import typer

app = typer.Typer(no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="For a program.")]
Run = Annotated[str, typer.Option(help="Only those of this run.")]
Most = Annotated[int, typer.Option("--count", min=1, help="The newest so many of each shard.")]


@app.command("list")
def list_dead(
    run: Run = "",
    kind: Annotated[str, typer.Option(help="Only of this kind, such as lost.")] = "",
    count: Most = 200,
    as_json: Json = False,
) -> None:
    """Dead letters by what they died of, and then one by one, the newest first. Ends with 1 when there is none."""
    from ops.cli.connection import connected
    from ops.console import open_console
    from ops.dead.letters import DeadLetter, read_dead_letters
    from ops.dead.view import as_map, tables

    async def act() -> list[DeadLetter]:
        async with connected() as (settings, client):
            found = await read_dead_letters(client, settings, most=count)
            return [letter for letter in found if (not run or letter.run == run) and (not kind or letter.kind == kind)]

    letters = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps([as_map(letter) for letter in letters]).decode())
    elif letters:
        open_console().print(tables(letters))
    else:
        typer.echo("no dead letter", err=True)
    if not letters:
        raise typer.Exit(1)


@app.command("show")
def show(job: Annotated[str, typer.Argument(help="Its id, or the entry of a letter without one.")], as_json: Json = False) -> None:
    """One dead letter whole: why it died, how often it was tried, and what of the job is still there. Ends with 2 when there is none."""
    from ops.cli.connection import connected
    from ops.dead.letters import DeadLetter, letter_of
    from ops.dead.view import as_lines, as_map

    async def act() -> DeadLetter:
        async with connected() as (settings, client):
            return await letter_of(client, settings, job)

    letter = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps(as_map(letter)).decode())
    else:
        for line in as_lines(letter):
            typer.echo(line)


@app.command("replay")
def replay(jobs: Annotated[list[str], typer.Argument(help="Ids of dead jobs.")], as_json: Json = False) -> None:
    """Try dead jobs again, each as a new job of its run that names the old one in `replay_of`. The old record stands; its group does not
    change. The job, its prompt and its template must still be there: until the trainer has acknowledged them. Ends with 2 when one is
    not."""
    from ops.cli.connection import connected
    from ops.dead.replay import Replayed, replay_job

    async def act() -> list[Replayed]:
        async with connected() as (settings, client):
            return [await replay_job(client, settings, job) for job in jobs]

    found = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps([asdict(one) for one in found]).decode())
        return
    for one in found:
        typer.echo(f"{one.job} replays {one.replay_of}" + ("" if one.is_new else " (it was asked for before)"))


@app.command("drop")
def drop(
    jobs: Annotated[list[str] | None, typer.Argument(help="Ids of dead jobs, or entries of letters without one.")] = None,
    run: Run = "",
    everything: Annotated[bool, typer.Option("--all", help="All of them, or all of the run.")] = False,
    as_json: Json = False,
) -> None:
    """Take dead letters off the list. The jobs' records stay with their trainers. Ends with 2 when one is not there."""
    from ops.cli.connection import connected
    from ops.dead.letters import drop_letters, letter_of, read_dead_letters

    if bool(jobs) == everything:
        raise typer.BadParameter("name jobs, or say --all", param_hint="JOBS")

    async def act() -> int:
        async with connected() as (settings, client):
            if jobs:
                letters = [await letter_of(client, settings, job) for job in jobs]
            else:
                letters = [letter for letter in await read_dead_letters(client, settings, most=10**6) if not run or letter.run == run]
            return await drop_letters(client, settings, letters)

    dropped = asyncio.run(act())
    typer.echo(orjson.dumps({"dropped": dropped}).decode() if as_json else f"{dropped} dropped")
