"""`rollstream gateway run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

if TYPE_CHECKING:
    from ops.gateway import Listening

app = typer.Typer(no_args_is_help=True)


@app.callback()
def gateway() -> None:
    """The pipeline over HTTP."""


@app.command("run")
def run(
    run: Annotated[str | None, typer.Option(help="The run whose one live client this is; default: gateway.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; one that others reach needs token files.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. Default: 8006.", min=0, max=65535)] = None,
    socket: Annotated[Path | None, typer.Option(help="A Unix socket in place of host and port.")] = None,
    grace_s: Annotated[float | None, typer.Option(help="Seconds that open calls have after SIGTERM.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: one line on standard output when it serves.")] = False,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    log_json: Annotated[bool, typer.Option(help="Logs as JSON lines.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve the pipeline over HTTP until SIGTERM: open calls may end within the grace period; a second SIGTERM tells them at once where
    their results will be. Jobs go on without it. Exit code 3 when another client took the run."""
    from ops.gateway import GatewaySettings
    from ops.gateway.process import run_gateway
    from pipeline.event_loop import run_process
    from pipeline.logs import configure_logs

    configure_logs(as_json=log_json, level=log_level)
    settings = GatewaySettings.load(config, run=run, host=host, port=port, socket=socket, grace_s=grace_s)

    def announce(found: Listening) -> None:
        if as_json:
            typer.echo(orjson.dumps(found).decode())
            return
        open_to = "with tokens" if found.needs_token else "this machine only, without tokens"
        typer.echo(f"gateway of run {found.run} serves at {found.url} ({open_to}); {found.url}/docs says what it takes")

    raise typer.Exit(run_process(run_gateway(settings, config, announce)))
