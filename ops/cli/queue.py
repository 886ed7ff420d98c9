"""`rollstream queue peek`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
import typer

app = typer.Typer(no_args_is_help=True)

STREAMS = ("init", "run", "eval", "reward", "cancel", "dead", "results:<run>")
WITH_PARTS = ("init", "run", "eval", "results")
"""Streams that there may be several of: a class of nodes, a lane, a run."""


@app.callback()
def queue() -> None:
    """Streams and what waits in them."""


@app.command("peek")
def peek(
    stream: Annotated[str, typer.Argument(help="init, run, eval, reward, cancel, dead, results:<run>, or a lane such as run:@node1")],
    count: Annotated[int, typer.Option(help="Entries, the newest.")] = 10,
    shard: Annotated[int | None, typer.Option(min=0, help="Which shard; default: that of the run, else 0.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The newest entries of a stream, as they stand. Ends with 1 when there is none."""
    from ops.cli.connection import connected, keys_of
    from pipeline.keys import Keys
    from pipeline.redis_client import ask

    name = stream.removeprefix("s:")
    kind, _, rest = name.partition(":")
    if not (kind in STREAMS or (kind == "results" and rest)) or (rest and kind not in WITH_PARTS):
        raise typer.BadParameter(f"no stream {stream!r}; there are: {', '.join(STREAMS)}", param_hint="STREAM")

    async def act() -> list[tuple[str, dict[str, str]]]:
        async with connected() as (settings, client):
            of_run = kind == "results" and shard is None
            keys = keys_of(settings, rest) if of_run else Keys.of_shard(settings.namespace, shard or 0)
            key = keys.key("s", name)
            found = await ask(client, "XREVRANGE", key, "+", "-", "COUNT", count)
            return [
                (
                    entry.decode(),
                    {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in (fields or {}).items()},
                )
                for entry, fields in found
            ]

    entries = asyncio.run(act())
    for entry, fields in reversed(entries):
        if as_json:
            typer.echo(orjson.dumps({"id": entry, **fields}).decode())
        else:
            typer.echo(f"{entry}  " + "  ".join(f"{name}={value}" for name, value in fields.items() if value))
    if not entries:
        typer.echo(f"nothing in {name}", err=True)
        raise typer.Exit(1)
