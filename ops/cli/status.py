"""`rollstream status`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
import typer


def status(as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False) -> None:
    """One look at the pipeline: in the first line what is wrong, why, and the next command. Reads only, and answers within two seconds
    also when Redis does not. Exit code: 0 healthy, 1 degraded, 2 stopped, 3 Redis gives no answer."""
    from ops.status.look import look_and_judge
    from pipeline.settings import QueueSettings

    judgement, facts = asyncio.run(look_and_judge(QueueSettings.load()))
    if facts is None:
        typer.echo(orjson.dumps(judgement.as_map()).decode() if as_json else judgement.first_line)
    else:
        from ops.status.view import as_lines, as_map

        if as_json:
            typer.echo(orjson.dumps(as_map(judgement, facts), option=orjson.OPT_NON_STR_KEYS).decode())
        else:
            for line in as_lines(judgement, facts):
                typer.echo(line)
    raise typer.Exit(judgement.verdict.exit_code)
