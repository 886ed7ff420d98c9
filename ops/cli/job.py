"""`rollstream job show|log|regrade|cancel`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import orjson
import typer

from ops.cli.cancel_reason import Reason, check_reason
from ops.cli.regrading import Config, Every, Json, Parallel, Results

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show(
    job: Annotated[str, typer.Argument(help="Its id, as results and streams name it.")],
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    whole: Annotated[bool, typer.Option(help="Messages uncut.")] = False,
) -> None:
    """The whole story of a job: where it stands, when what happened, what it said, what it was given for it."""
    from ops.cli.connection import connected, keys_of
    from ops.job.story import JobStory, job_story

    async def act() -> JobStory:
        async with connected() as (settings, client):
            return await job_story(client, keys_of(settings, job), job)

    story = asyncio.run(act())
    if as_json:
        from ops.job.as_map import story_as_map

        typer.echo(orjson.dumps(story_as_map(story), option=orjson.OPT_SERIALIZE_NUMPY).decode())
    else:
        from ops.console import open_console
        from ops.job.view import render_story

        render_story(open_console(), story, longest=10**9 if whole else 900)


@app.command("log")
def log(
    job: Annotated[str, typer.Argument(help="Its id.")],
    name: Annotated[str, typer.Option(help="Of the by-product; `job show` lists them.")] = "log",
    most_mib: Annotated[int, typer.Option(min=1, help="Of the unpacked log; what is beyond is left out, and said.")] = 1024,
) -> None:
    """The log that a job's grader kept, whole and unpacked. A terminal is shown control characters spelt out; a file or a pipe gets the
    bytes. Ends with 1 when it is damaged or cut off."""
    from ops.cli.connection import connected, keys_of
    from ops.job.log import BadLog, byproduct, for_a_terminal, unpacked

    async def act() -> bytes:
        async with connected() as (settings, client):
            return await byproduct(client, keys_of(settings, job), job, name)

    pieces = unpacked(asyncio.run(act()), most_bytes=most_mib << 20)
    try:
        if sys.stdout.isatty():
            for line in for_a_terminal(pieces):
                sys.stdout.write(line)
        else:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except BadLog as error:
        sys.stdout.flush()
        typer.echo(f"rollstream: {name} of job {job}: {error}", err=True)
        raise typer.Exit(1) from error


@app.command("regrade")
def regrade(
    sources: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs, or saved records: files, folders, patterns.")],
    parallel: Parallel = None,
    results: Results = None,
    every: Every = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Judge jobs again, without RUN, by the graders and in the sandboxes that are here, and show what changed. It replaces nothing. Ends
    with 0 when all is the same, 1 when something changed, 2 when nothing could be tried, 4 when some could not be judged."""
    from ops.cli.regrading import Wanted, regrade_command

    regrade_command(Wanted(sources=sources), parallel=parallel, results=results, every=every, as_json=as_json, config=config)


@app.command("cancel")
def cancel(
    targets: Annotated[list[str], typer.Argument(help="Ids of jobs, or of one kind of other target.")],
    kind: Annotated[str, typer.Option(help="job, group or run.")] = "job",
    reason: Reason = "user",
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Cancel jobs, groups or runs: waiting ones end at once, running ones within a second. Again: nothing happens. Ends with 2 when none
    of them is known."""
    from ops.cli.connection import connected, keys_of
    from pipeline.scripts import Scripts

    if kind not in ("job", "group", "run"):
        raise typer.BadParameter("must be job, group or run", param_hint="--kind")
    check_reason(reason)

    async def act() -> dict[str, int]:
        total = {"settled": 0, "running": 0, "done": 0, "unknown": 0}
        async with connected() as (settings, client):
            for target in targets:
                scripts = Scripts(client, keys_of(settings, target))
                match kind:
                    case "job":
                        counts = await scripts.cancel("job", [target], reason)
                    case "group":
                        counts = await scripts.cancel("group", [target], reason)
                    case _:
                        counts = await scripts.cancel("run", [target], reason)
                total = {name: total[name] + counts[name] for name in total}
        return total

    total = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps(total).decode())
    else:
        typer.echo(
            f"{total['settled']} ended at once, {total['running']} told to stop, "
            f"{total['done']} had ended, {total['unknown']} are not known"
        )
    if total["unknown"] and not any(total[name] for name in ("settled", "running", "done")):
        raise typer.Exit(2)
