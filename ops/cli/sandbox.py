"""`rollstream sandbox`: the service that owns the sandboxes of a node, and what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import orjson
import typer

if TYPE_CHECKING:
    from workers.sandbox.service import RemoteSandboxes
    from workers.sandbox.service.views import SandboxView

app = typer.Typer(no_args_is_help=True)

T = TypeVar("T")
RunDir = Annotated[Path | None, typer.Option(help="Folder of the service's socket.")]
Config = Annotated[Path | None, typer.Option(help="A rollstream.toml.")]
AsJson = Annotated[bool, typer.Option("--json", help="For a program.")]


@app.command("serve")
def serve(
    backend: Annotated[str | None, typer.Option(help="auto, bubblewrap, apptainer or process.")] = None,
    node: Annotated[str | None, typer.Option(help="Name of this node; default: the host and the Slurm job.")] = None,
    run_dir: RunDir = None,
    scratch_dir: Annotated[Path | None, typer.Option(help="Where sandboxes live; node-local.")] = None,
    grace_s: Annotated[float | None, typer.Option(help="Seconds that attached sandboxes have after SIGTERM.")] = None,
    while_used: Annotated[bool, typer.Option("--while-used", help="End when no worker is connected any more.")] = False,
    config: Config = None,
    log_json: Annotated[bool, typer.Option(help="Logs as JSON lines.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Own the sandboxes of this node until SIGTERM: attached ones may end within the grace period; a second SIGTERM ends them at once. Exit
    code 4 when another service has the folders."""
    from ops.sandbox_service import EXIT_ALREADY_SERVED, LINGER_S, run_service
    from pipeline.event_loop import run_process
    from pipeline.logs import configure_logs
    from workers.sandbox.service.serving import AlreadyServed
    from workers.sandbox.service.settings import SandboxSettings

    configure_logs(as_json=log_json, level=log_level)
    settings = SandboxSettings.load(config, backend=backend, node=node, run_dir=run_dir, scratch_dir=scratch_dir, grace_s=grace_s)
    try:
        code = run_process(run_service(settings, config=config, while_used_s=LINGER_S if while_used else None))
    except AlreadyServed as error:
        typer.echo(f"rollstream: {error}", err=True)
        raise typer.Exit(EXIT_ALREADY_SERVED) from error
    raise typer.Exit(code)


@app.command("list")
def list_sandboxes(run_dir: RunDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """The sandboxes of this node, oldest first; and on the error stream why the node starts none, when it is degraded."""
    from ops.sandbox_view import as_map, as_table

    async def look(service: RemoteSandboxes) -> tuple[Sequence[SandboxView], str]:
        return await service.views(), service.degraded

    found, degraded = _ask(config, run_dir, look)
    if degraded:
        typer.echo(f"this node is degraded, and starts no sandboxes: {degraded}", err=True)
    if as_json:
        typer.echo(orjson.dumps([as_map(view) for view in found]).decode())
    elif found:
        typer.echo("\n".join(as_table(found)))
    else:
        typer.echo("no sandboxes", err=True)


@app.command("show")
def show(
    sandbox: Annotated[str, typer.Argument(help="Its id, or the beginning of it.")],
    run_dir: RunDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """One sandbox: whose it is, what bounds it, what runs in it. Exit code 1 when there is none of that name."""
    from ops.sandbox_view import as_map, as_text

    found = _ask(config, run_dir, lambda service: service.views(sandbox, with_processes=True))
    if not found or not sandbox:
        typer.echo(f"no sandbox {sandbox}: rollstream sandbox list names those that are here", err=True)
        raise typer.Exit(1)
    for view in found:
        typer.echo(orjson.dumps(as_map(view)).decode() if as_json else "\n".join(as_text(view)))


@app.command("stop")
def stop(
    sandboxes: Annotated[list[str] | None, typer.Argument(help="Ids, whole.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sandboxes of this node; the service goes on.")] = False,
    run_dir: RunDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """End sandboxes, whoever holds them: their jobs are tried again. Exit code 1 when one of them is not here, or does not end."""
    asked = list(sandboxes or ())
    if bool(asked) == everything:
        raise typer.BadParameter("expected ids, or --all", param_hint="SANDBOXES")

    async def act(service: RemoteSandboxes) -> tuple[list[str], list[str], dict[str, str]]:
        here = {view.sandbox_id for view in await service.views()}
        report = await service.end([each for each in (sorted(here) if everything else asked) if each in here], "stopped by hand")
        return list(report.ended), [each for each in asked if each not in here], dict(report.failed)

    ended, unknown, failed = _ask(config, run_dir, act)
    if as_json:
        typer.echo(orjson.dumps({"ended": ended, "unknown": unknown, "failed": failed}).decode())
    else:
        for each in ended:
            typer.echo(f"{each} ended")
        for each in unknown:
            typer.echo(f"{each} is not here: rollstream sandbox list names those that are", err=True)
        for each, why in failed.items():
            typer.echo(f"{each} did not end: {why}", err=True)
    if unknown or failed:
        raise typer.Exit(1)


def _ask(config: Path | None, run_dir: Path | None, question: Callable[[RemoteSandboxes], Awaitable[T]]) -> T:
    """Asks the service of this node; exit code 3 when none answers."""
    from workers.sandbox.service import RemoteSandboxes, ServiceNotThere
    from workers.sandbox.service.settings import SandboxSettings

    settings = SandboxSettings.load(config, run_dir=run_dir)

    async def act() -> T:
        async with RemoteSandboxes(settings.run) as service:
            return await question(service)

    try:
        return asyncio.run(act())
    except ServiceNotThere as error:
        typer.echo(
            f"no sandbox service answers: {error}\n`rollstream sandbox serve` starts one; workers start their own where none answers",
            err=True,
        )
        raise typer.Exit(3) from error
