"""`rollstream supervisor run`."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def supervisor() -> None:
    """The DAPO supervisor: counts informative groups, replaces filtered ones, cancels what is redundant."""


@app.command("run")
def run(
    name: Annotated[str, typer.Option(help="Name of this process among the supervisors; default: host and pid.")] = "",
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    log_json: Annotated[bool, typer.Option(help="Logs as JSON lines.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Supervise every run until SIGTERM. Any number may run; one is enough."""
    from ops.node_process import run_supervisor
    from pipeline.logs import configure_logs

    configure_logs(as_json=log_json, level=log_level)
    raise typer.Exit(asyncio.run(run_supervisor(name or f"{socket.gethostname()}-{os.getpid()}", config)))
