"""`rollstream job show` and `rollstream job cancel`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
import typer

from ops.cli.cancel_reason import Reason, check_reason

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show(
    job: Annotated[str, typer.Argument(help="Its id, as results and streams name it.")],
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    whole: Annotated[bool, typer.Option(help="Messages uncut.")] = False,
) -> None:
    """The whole story of a job: where it stands, when what happened, what it said, what it was given for it."""
    from ops.cli.connection import connected, keys_of
    from ops.job_story import JobStory, job_story

    async def act() -> JobStory:
        async with connected() as (settings, client):
            return await job_story(client, keys_of(settings, job), job)

    story = asyncio.run(act())
    if as_json:
        from ops.job_json import story_as_map

        typer.echo(orjson.dumps(story_as_map(story), option=orjson.OPT_SERIALIZE_NUMPY).decode())
    else:
        from ops.console import open_console
        from ops.job_view import render_story

        render_story(open_console(), story, longest=10**9 if whole else 900)


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
