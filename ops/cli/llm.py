"""`rollstream llm`: the inference servers of a run; servers and models of one's own are in `llm_serve.py`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
import typer

from ops.cli import llm_serve

app = typer.Typer(no_args_is_help=True)
app.command("serve", context_settings={"allow_extra_args": True})(llm_serve.serve)
app.command("tiny")(llm_serve.tiny)
app.command("smollm2")(llm_serve.smollm2)

Run = Annotated[str, typer.Option(help="The run whose policy the servers hold.")]


@app.command("add")
def add(
    urls: Annotated[list[str], typer.Argument(help="http://host:port or unix:/path.sock")],
    run: Run,
    model: Annotated[str, typer.Option(help="Name of the model at the server; empty = its only one.")] = "",
    version: Annotated[str, typer.Option(help="Label of the weights they hold.")] = "",
) -> None:
    """Give servers to a run; workers use them at once."""
    from ops.cli.connection import connected
    from pipeline.inference_pool import InferencePool, Server

    for url in urls:
        _check_address(url)

    async def act() -> None:
        async with connected() as (settings, client):
            pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
            await pool.attach(run, [Server(url, model, version) for url in urls])

    asyncio.run(act())
    typer.echo(f"{len(urls)} server{'s' if len(urls) != 1 else ''} given to run {run}")


@app.command("list")
def list_servers(run: Run, as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False) -> None:
    """The servers of a run, and how many jobs each has."""
    from ops.cli.connection import connected
    from pipeline.inference_pool import InferencePool

    async def act() -> list[dict[str, object]]:
        async with connected() as (settings, client):
            pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
            state = await pool.state(run)
            return [{"url": s.url, "state": s.standing, "model": s.model, "version": s.version, "jobs": s.jobs} for s in state.servers]

    found = asyncio.run(act())
    if as_json:
        typer.echo(orjson.dumps(found).decode())
        return
    for server in found:
        typer.echo(
            f"{server['url']}  {server['state']}  {server['jobs']} jobs  model {server['model'] or '-'}  version {server['version'] or '-'}"
        )
    if not found:
        typer.echo(f"run {run} has no server: rollstream llm add --run {run} URL", err=True)
        raise typer.Exit(1)


@app.command("drop")
def drop(urls: Annotated[list[str], typer.Argument()], run: Run) -> None:
    """Take servers from a run; calls in flight end by themselves."""
    from ops.cli.connection import connected
    from pipeline.inference_pool import InferencePool

    async def act() -> list[str]:
        async with connected() as (settings, client):
            return await InferencePool(client, settings.namespace, lease_s=settings.lease_s).detach(run, urls)

    known = asyncio.run(act())
    if taken := [url for url in urls if url in known]:
        typer.echo(f"taken from run {run}: {', '.join(taken)}")
    if others := [url for url in urls if url not in known]:
        typer.echo(f"run {run} has no server {', '.join(others)}; rollstream llm list --run {run} names those that it has", err=True)
        raise typer.Exit(1)


def _check_address(url: str) -> None:
    """A mistyped address would only show as jobs that wait."""
    scheme, _, rest = url.partition(":")
    fits = scheme in ("http", "https") and rest.startswith("//") and rest.strip("/")
    if not (fits or (scheme == "unix" and rest.startswith("/"))):
        raise typer.BadParameter(f"expected http://host:port or unix:/path, got {url!r}", param_hint="URLS")
