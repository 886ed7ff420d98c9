"""`rollstream node`: the launcher of a node, and what people look at and ask of nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import orjson
import typer

app = typer.Typer(no_args_is_help=True)

Node = Annotated[str, typer.Argument(help="Its name: `rollstream node list` has them.")]
AsJson = Annotated[bool, typer.Option("--json", help="For a program.")]


@app.command("run")
def run(
    node: Annotated[str | None, typer.Option(help="Name of this node; default: the host and the Slurm job.")] = None,
    init: Annotated[str | None, typer.Option(help="Slots of INIT (8), or processes and slots of each (2x4); default: by cores.")] = None,
    run_size: Annotated[str | None, typer.Option("--run", help="The same of RUN.")] = None,
    eval_size: Annotated[str | None, typer.Option("--eval", help="The same of EVAL.")] = None,
    supervisor: Annotated[bool | None, typer.Option("--supervisor/--no-supervisor", help="Whether a supervisor runs here.")] = None,
    grace_s: Annotated[float | None, typer.Option(help="Seconds that the drain may take.")] = None,
    until: Annotated[str | None, typer.Option(help="When it ends: 8h, 90m, an ISO time; default: with the Slurm job.")] = None,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    log_json: Annotated[bool, typer.Option(help="What the launcher prints as JSON lines; the node's log has them anyway.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; of all processes of the node.")] = "info",
) -> None:
    """Run this node's workers, sandbox service and supervisor until SIGTERM or Ctrl-C, which drain by stage; a second one hands back at
    once. Exit code 1 when a process crashed too often or had to be killed, 4 when another launcher has the name."""
    from ops.node.launch import run_node
    from ops.node.settings import NodeSettings
    from pipeline.logs import configure_logs

    configure_logs(as_json=log_json, level=log_level)
    settings = NodeSettings.load(
        config, node=node, init=init, run=run_size, eval=eval_size, supervisor=supervisor, grace_s=grace_s, until=until
    )
    raise typer.Exit(asyncio.run(run_node(settings, config, log_level=log_level)))


@app.command("list")
def list_nodes(as_json: AsJson = False) -> None:
    """The nodes of a day: how each stands, its sizes, how long it has. Exit code 1 when none runs."""
    from ops.cli.connection import connected
    from ops.node.reading import NodeView, read_nodes
    from ops.node.view import as_map, as_table

    async def act() -> list[NodeView]:
        async with connected() as (settings, client):
            return await read_nodes(client, settings)

    found = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps([as_map(view) for view in found]).decode())
    elif found:
        typer.echo("\n".join(as_table(found)))
    else:
        typer.echo("no node in a day: ./ops/launch node starts one", err=True)
    if not any(view.is_alive for view in found):
        raise typer.Exit(1)


@app.command("show")
def show(node: Node, as_json: AsJson = False) -> None:
    """One node: processes, sandboxes, disks, and the last lines of what crashed. Exit code 1 when nobody knows it."""
    from ops.cli.connection import connected
    from ops.node.reading import NodeView, read_node
    from ops.node.view import as_map, as_text

    async def act() -> NodeView | None:
        async with connected() as (settings, client):
            return await read_node(client, settings, node)

    view = asyncio.run(act())
    if view is None:
        typer.echo(f"no node {node} in a day: rollstream node list has those that were there", err=True)
        raise typer.Exit(1)
    typer.echo(orjson.dumps(as_map(view)).decode() if as_json else "\n".join(as_text(view)))


@app.command("logs")
def logs(
    node: Annotated[str, typer.Argument(help="Its name; default: all whose logs can be seen from here.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    level: Annotated[str, typer.Option(help="The lowest: debug, info, warning or error.")] = "debug",
    job: Annotated[str, typer.Option(help="Only lines that name this job, group or run.")] = "",
    process: Annotated[str, typer.Option(help="Only those of this process: run-0, launcher, ...")] = "",
    last: Annotated[int, typer.Option(help="So many lines, the last ones.", min=0)] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Lines as they stand in the log.")] = False,
) -> None:
    """What the processes of nodes log, by time (UTC): of this machine's nodes all of it, of others their warnings and errors out of the
    state folder. Exit code 1 when there is no log, or no line names the job."""
    from ops.logs.show import show_logs

    raise typer.Exit(show_logs(node, follow=follow, level=level, unit=job, process=process, most=last, as_json=as_json))


@app.command("scale")
def scale(
    node: Node,
    sizes: Annotated[list[str], typer.Argument(help="init=8, run=96 or run=3x32, eval=8; at least one.")],
    as_json: AsJson = False,
) -> None:
    """Change how much a node has while it runs: more comes up beside what is there, what is too much drains. Until its launcher ends."""
    from ops.node.asking import read_sizes

    asked = read_sizes(sizes)
    words = {f"want.{stage.value}": str(size) for stage, size in asked.items()}
    _ask(node, words, " ".join(f"{stage.value}={size}" for stage, size in asked.items()), as_json=as_json)


@app.command("drain")
def drain(node: Node, as_json: AsJson = False) -> None:
    """End a node in order, as SIGTERM does: nothing new is taken, what runs ends within the grace or is handed back."""
    _ask(node, {"drain": "1"}, "drain", as_json=as_json)


def _ask(node: str, fields: dict[str, str], said: str, *, as_json: bool) -> None:
    """Exit code 1 when no launcher has the name."""
    from ops.cli.connection import connected
    from pipeline.scripts.node_calls import NodeScripts

    async def act() -> tuple[str, int] | None:
        async with connected() as (settings, client):
            return await NodeScripts(client, settings.namespace).ask_node(node, fields)

    gone = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps({"node": node, "asked": fields if gone is None else {}, "state": "" if gone is None else gone[0]}).decode())
    elif gone is None:
        typer.echo(f"{node} was asked: {said}; rollstream node show {node} says how it stands")
    if gone is not None:
        typer.echo(
            f"no launcher runs node {node}{f', which is {gone[0]}' if gone[0] else ''}: rollstream node list has those that do", err=True
        )
        raise typer.Exit(1)
