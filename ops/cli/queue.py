"""`rollstream queue peek`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

if TYPE_CHECKING:
    from pipeline.redis_client import AsyncClient
    from pipeline.settings import QueueSettings

app = typer.Typer(no_args_is_help=True)

STREAMS = ("init", "run", "eval", "reward", "cancel", "dead", "results:<run>")
WITH_PARTS = ("init", "run", "eval", "results")
"""Streams that there may be several of: a class of nodes, a lane, a run."""


NUMPY = orjson.OPT_SERIALIZE_NUMPY


@app.callback()
def queue() -> None:
    """Streams and what waits in them."""


@app.command("peek")
def peek(
    stream: Annotated[str, typer.Argument(help="init, run, eval, reward, cancel, dead, results:<run>, or a lane such as run:@node1")],
    count: Annotated[int, typer.Option(help="Entries, the newest.")] = 10,
    shard: Annotated[int | None, typer.Option(min=0, help="Which shard; default: that of the run, else 0.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="With what the entries' jobs hold, decoded: the story of each as JSON.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The newest entries of a stream, as they stand, and what stands behind them. Ends with 1 when there is none."""
    from ops.cli.connection import connected, keys_of
    from ops.visible_text import visible_line
    from pipeline.keys import Keys
    from pipeline.redis_client import ask

    name = stream.removeprefix("s:")
    kind, _, rest = name.partition(":")
    if not (kind in STREAMS or (kind == "results" and rest)) or (rest and kind not in WITH_PARTS):
        raise typer.BadParameter(f"no stream {stream!r}; there are: {', '.join(STREAMS)}", param_hint="STREAM")

    async def act() -> list[tuple[str, dict[str, str], dict[str, object] | None]]:
        async with connected() as (settings, client):
            of_run = kind == "results" and shard is None
            keys = keys_of(settings, rest) if of_run else Keys.of_shard(settings.namespace, shard or 0)
            key = keys.key("s", name)
            found = await ask(client, "XREVRANGE", key, "+", "-", "COUNT", count)
            shown = []
            for entry, raw in found:
                fields = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in (raw or {}).items()}
                behind = await _bodies(client, settings, fields.get("job", "")) if bodies else None
                shown.append((entry.decode(), fields, behind))
            return shown

    entries = asyncio.run(act())
    for entry, fields, behind in reversed(entries):
        if as_json:
            typer.echo(orjson.dumps({"id": entry, **fields, **({"bodies": behind} if bodies else {})}, option=NUMPY).decode())
            continue
        typer.echo(f"{entry}  " + "  ".join(f"{name}={visible_line(value)}" for name, value in fields.items() if value))
        if behind is not None:
            typer.echo("    " + visible_line(orjson.dumps(behind, option=NUMPY).decode()))
    if not entries:
        typer.echo(f"nothing in {name}", err=True)
        raise typer.Exit(1)


async def _bodies(client: AsyncClient, settings: QueueSettings, job: str) -> dict[str, object] | None:
    """What Redis has of a job, decoded; None when that is nothing."""
    from ops.cli.connection import keys_of
    from ops.job.as_map import story_as_map
    from ops.job.story import NoSuchJob, job_story

    try:
        return story_as_map(await job_story(client, keys_of(settings, job), job)) if job else None
    except NoSuchJob:
        return None
