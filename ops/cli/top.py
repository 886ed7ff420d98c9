"""`rollstream top`: a live view in the terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from typing import Annotated

import orjson
import typer


def top(
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option(help="One look, then end; also what happens without a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One look as JSON.")] = False,
) -> None:
    """Show stages, runs and steps until Ctrl-C."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from ops.cli.connection import connected
    from ops.console import open_console
    from ops.look import look
    from ops.top_history import History
    from ops.top_over_time import over_time
    from ops.top_view import screen

    async def act() -> None:
        async with connected() as (settings, client):

            async def seen(history: History) -> Group:
                found = await look(client, settings)
                history.add(found, at_s=time.monotonic())
                return screen(found, over_time=over_time(history, every_s=every_s))

            if as_json:
                typer.echo(orjson.dumps(asdict(await look(client, settings)), option=orjson.OPT_NON_STR_KEYS).decode())
                return
            if once or not sys.stdout.isatty():
                open_console().print(screen(await look(client, settings)))
                return
            history, console = History(), open_console()
            if console.is_dumb_terminal:  # nothing can be drawn over: a look after the other, as they come
                console.print(await seen(history))
                while True:
                    await asyncio.sleep(every_s)
                    console.print(Text(""), await seen(history))
            with Live(await seen(history), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(every_s)
                    live.update(await seen(history), refresh=True)

    try:
        asyncio.run(act())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
