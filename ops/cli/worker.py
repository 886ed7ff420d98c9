"""`rollstream worker run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.messages import Stage

app = typer.Typer(no_args_is_help=True)


@app.command("run")
def run(
    stage: Annotated[Stage, typer.Option(help="The stage to serve.")],
    slots: Annotated[int | None, typer.Option(help="Jobs at once; default: by stage.")] = None,
    node: Annotated[str | None, typer.Option(help="Name of this node; default: the host and the Slurm job.")] = None,
    index: Annotated[int | None, typer.Option(help="Which of the stage's processes on this node: part of its stable name.")] = None,
    grace_s: Annotated[float | None, typer.Option(help="Seconds that running jobs have after SIGTERM.")] = None,
    scratch_dir: Annotated[Path | None, typer.Option(help="Scratch folder, for a sandbox service that it starts too.")] = None,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    log_json: Annotated[bool, typer.Option(help="Logs as JSON lines.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve one stage until SIGTERM: running jobs finish within the grace period, or are handed back; a second SIGTERM hands back at
    once."""
    from ops.node_process import run_worker
    from pipeline.event_loop import run_process
    from pipeline.logs import configure_logs
    from workers.settings import WorkerSettings

    configure_logs(as_json=log_json, level=log_level)
    settings = WorkerSettings.load(config, stage=stage, slots=slots, node=node, index=index, grace_s=grace_s, scratch_dir=scratch_dir)
    raise typer.Exit(run_process(run_worker(settings, config)))
