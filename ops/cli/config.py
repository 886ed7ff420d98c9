"""`rollstream config show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Settings: what they are here, and where they come from."""


@app.command("show")
def show(
    table: Annotated[str, typer.Argument(help="One table only, such as queue; empty = all.")] = "",
    origin: Annotated[bool, typer.Option("--origin", help="Where each comes from.")] = False,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """The settings that a process started here would have. Passwords and keys are in files and are not shown; neither are those in
    addresses. Ends with 2 when the file has a table or a setting that there is not."""
    from dataclasses import asdict

    from ops.effective_settings import effective
    from ops.settings_tables import TABLES

    if table and table not in TABLES:
        raise typer.BadParameter(f"no table {table!r}; there are: {', '.join(TABLES)}", param_hint="TABLE")
    found = list(effective({table: TABLES[table]} if table else TABLES, config))
    if as_json:
        typer.echo(orjson.dumps([asdict(setting) for setting in found]).decode())
        return
    for setting in found:
        said = f"  # {setting.origin}" if origin else ""
        typer.echo(f"{setting.table}.{setting.name} = {setting.value}{said}")
