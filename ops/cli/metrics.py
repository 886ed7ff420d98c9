"""`rollstream metrics serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def metrics() -> None:
    """Metrics for Prometheus."""


@app.command("serve")
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; one that others reach needs a token file.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. Default: 8007.", min=0, max=65535)] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with tokens, one a line, of who may scrape.")] = None,
    targets_dir: Annotated[Path | None, typer.Option(help="Folder for a target file of Prometheus's file_sd.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: one line on standard output when it serves.")] = False,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    log_json: Annotated[bool, typer.Option(help="Logs as JSON lines.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Answer /metrics with what Redis says of the whole pipeline, until SIGTERM. One exporter reads; a second one waits, and takes over.
    Nodes answer for their own processes (`[node] metrics_port`)."""
    from ops.metrics.exporter import serve as serve_metrics
    from ops.metrics.settings import MetricsSettings
    from ops.visible_text import visible_line
    from pipeline.event_loop import run_process
    from pipeline.logs import configure_logs
    from pipeline.process import Shutdown
    from pipeline.settings import QueueSettings

    configure_logs(as_json=log_json, level=log_level)
    settings = MetricsSettings.load(config, host=host, port=port, token_file=token_file, targets_dir=targets_dir)
    queue = QueueSettings.load(config)

    def announce(url: str, target: Path | None, leader: str) -> None:
        if as_json:
            told = {"url": f"{url}/metrics", "target_file": str(target) if target else "", "queue_read_at": f"{leader or url}/metrics"}
            typer.echo(orjson.dumps(told).decode())
        else:
            open_to = "with a token" if settings.token_file else "this machine only"
            typer.echo(f"metrics at {url}/metrics ({open_to})" + (f", target file {target}" if target else ""))
            if leader:
                typer.echo(f"another exporter reads the queue: {visible_line(leader)}/metrics; this one takes over when that ends")

    async def until_told() -> None:
        shutdown = Shutdown()
        shutdown.on_signals()
        shutdown.on_parent_exit()
        await serve_metrics(settings, queue, shutdown, announce)

    run_process(until_told())
