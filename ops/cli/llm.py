"""`rollstream llm`: the inference servers of a run; servers and models of one's own are in `llm_serve.py` and `llm_node.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

import orjson
import typer

from ops.cli import llm_node, llm_serve

app = typer.Typer(no_args_is_help=True)
app.command("serve", context_settings={"allow_extra_args": True})(llm_serve.serve)
app.command("node", context_settings={"allow_extra_args": True})(llm_node.node)
app.command("tiny")(llm_serve.tiny)
app.command("smollm2")(llm_serve.smollm2)

Run = Annotated[str, typer.Option(help="The run whose policy the servers hold.")]


@app.command("add")
def add(
    urls: Annotated[list[str], typer.Argument(help="http://host:port or unix:/path.sock")],
    run: Run,
    model: Annotated[str, typer.Option(help="Name of the model at the server; empty = its only one.")] = "",
    version: Annotated[str, typer.Option(help="Label of the weights they hold, for servers that report none.")] = "",
    control: Annotated[str, typer.Option(help="Who gives them their weights: ops, or the trainer of the run.")] = "ops",
    shared: Annotated[bool, typer.Option("--shared", help="Their weights never change: several runs may have them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Give servers to a run; workers use them at once. One that drains gets jobs again."""
    from ops.cli.connection import connected
    from pipeline.inference_pool import InferencePool, Server
    from pipeline.inference_pool.records import ControlledBy

    for url in urls:
        _check_address(url)
    if control not in ("ops", "trainer"):
        raise typer.BadParameter(f"expected ops or trainer, got {control!r}", param_hint="--control")
    by: ControlledBy = "trainer" if control == "trainer" else "ops"

    async def act() -> int:
        async with connected() as (settings, client):
            pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
            return await pool.attach(run, [Server(url, model, version, control=by, shared=shared) for url in urls])

    new = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps({"run": run, "given": urls, "new": new}).decode())
        return
    typer.echo(f"{len(urls)} server{'s' if len(urls) != 1 else ''} given to run {run}")


@app.command("list")
def list_servers(run: Run, as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False) -> None:
    """The servers of a run: how each stands and why, what it has to do. Exit code 1 when the run has none that takes jobs."""
    from ops.cli.connection import connected
    from ops.llm_view import as_map, as_text
    from pipeline.inference_pool import InferencePool, PoolState

    async def act() -> PoolState:
        async with connected() as (settings, client):
            return await InferencePool(client, settings.namespace, lease_s=settings.lease_s).state(run)

    state = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps(as_map(state)).decode())
    elif state.servers:
        typer.echo(as_text(state))
    else:
        typer.echo(f"run {run} has no server: rollstream llm add --run {run} URL", err=True)
    if not any(server.is_usable for server in state.servers):
        raise typer.Exit(1)


@app.command("drain")
def drain(
    urls: Annotated[list[str], typer.Argument()],
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Servers keep the jobs that they have and get no new ones; `add` brings them back."""
    _change("drain", urls, run, as_json=as_json)


@app.command("drop")
def drop(
    urls: Annotated[list[str], typer.Argument()],
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
) -> None:
    """Take servers from a run; calls in flight end by themselves, and jobs go elsewhere with their next call."""
    _change("drop", urls, run, as_json=as_json)


@app.command("clear")
def clear(run: Run, as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False) -> None:
    """Take all servers from a run; its jobs wait for others."""
    _change("drop", None, run, as_json=as_json)


def _change(verb: Literal["drain", "drop"], urls: Sequence[str] | None, run: str, *, as_json: bool) -> None:
    """Does it and says to which servers; exit code 1 when the run has not all of them."""
    from ops.cli.connection import connected
    from pipeline.inference_pool import InferencePool

    async def act() -> tuple[list[str], list[str]]:
        async with connected() as (settings, client):
            pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
            asked = [server.url for server in (await pool.state(run)).servers] if urls is None else [*urls]
            if not asked:
                return [], []
            return asked, await (pool.drain if verb == "drain" else pool.detach)(run, asked)

    asked, done = asyncio.run(act())
    others = [url for url in asked if url not in done]
    if as_json:
        typer.echo(orjson.dumps({"run": run, "done": done, "unknown": others}).decode())
    else:
        if done:
            typer.echo(f"{'draining in' if verb == 'drain' else 'taken from'} run {run}: {', '.join(done)}")
        if others:
            typer.echo(f"run {run} has no server {', '.join(others)}; rollstream llm list --run {run} names those that it has", err=True)
        if not asked:
            typer.echo(f"run {run} has no server", err=True)
    if others:
        raise typer.Exit(1)


def _check_address(url: str) -> None:
    """A mistyped address would only show as jobs that wait."""
    from pipeline.inference_pool import wrong_address

    if why := wrong_address(url):
        raise typer.BadParameter(why, param_hint="URLS")
