"""`rollstream queue peek`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def queue() -> None:
    """Streams and what waits in them."""


@app.command("peek")
def peek(
    stream: Annotated[str, typer.Argument(help="init, run, eval, reward, cancel, dead, results:<run>, or a lane such as run:@node1")],
    count: Annotated[int, typer.Option(help="Entries, the newest.")] = 10,
    shard: Annotated[int, typer.Option(help="Which shard.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The newest entries of a stream, as they stand."""
    from ops.cli.connection import connected
    from pipeline.keys import Keys
    from pipeline.redis_client import ask

    async def act() -> list[tuple[str, dict[str, str]]]:
        async with connected() as (settings, client):
            key = Keys.of_shard(settings.namespace, shard).key("s", stream.removeprefix("s:"))
            found = await ask(client, "XREVRANGE", key, "+", "-", "COUNT", count)
            return [
                (
                    entry.decode(),
                    {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in (fields or {}).items()},
                )
                for entry, fields in found
            ]

    for entry, fields in reversed(asyncio.run(act())):
        if as_json:
            typer.echo(orjson.dumps({"id": entry, **fields}).decode())
        else:
            typer.echo(f"{entry}  " + "  ".join(f"{name}={value}" for name, value in fields.items() if value))
