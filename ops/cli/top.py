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
    from ops.status.set_up import read_set_up
    from ops.status.set_up_troubles import of_set_up
    from ops.top.history import History
    from ops.top.over_time import over_time
    from ops.top.view import no_answer, screen
    from pipeline.errors import BrokerUnreachable

    async def act() -> None:
        async with connected() as (settings, client):

            async def troubles() -> list[str]:
                return [trouble.what for trouble in of_set_up(await read_set_up(client, settings))]

            async def seen(history: History | None = None) -> Group:
                found, wrong = await asyncio.gather(look(client, settings), troubles())
                if history is None:
                    return screen(found, wrong)
                history.add(found, at_s=time.monotonic())
                return screen(found, wrong, over_time=over_time(history, every_s=every_s))

            async def seen_or_awaited() -> Group:
                try:
                    return await seen(history)
                except BrokerUnreachable as error:  # a failover is waited for: who watches wants to see its end
                    return no_answer(str(error), await troubles())

            if as_json:
                typer.echo(orjson.dumps(asdict(await look(client, settings)), option=orjson.OPT_NON_STR_KEYS).decode())
                return
            if once or not sys.stdout.isatty():
                open_console().print(await seen())
                return
            history, console = History(), open_console()
            if console.is_dumb_terminal:  # nothing can be drawn over: a look after the other, as they come
                console.print(await seen(history))
                while True:
                    await asyncio.sleep(every_s)
                    console.print(Text(""), await seen_or_awaited())
            with Live(await seen(history), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(every_s)
                    live.update(await seen_or_awaited(), refresh=True)

    try:
        asyncio.run(act())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
