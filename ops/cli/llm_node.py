"""`rollstream llm node`: the inference servers of a machine."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer


def node(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Folder of the model, or its name on a hub.")],
    run: Annotated[str, typer.Option(help="The run that they serve.")],
    version: Annotated[str, typer.Option(help="Label of the weights: INCARNATION.NUMBER; default: one that names each start.")] = "",
    servers: Annotated[int | None, typer.Option(help="How many; default: as there are GPUs for, on the CPU one.", min=1, max=64)] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs to divide: 0,1,2,3; default: CUDA_VISIBLE_DEVICES, else all here.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs of each server.", min=1, max=64)] = 1,
    cpu: Annotated[bool, typer.Option("--cpu", help="On the CPU, with a build of vLLM for it.")] = False,
    python: Annotated[str | None, typer.Option(help="Python of the environment that has vLLM.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on: one that workers and the trainer reach.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Of the first server, the next one for the next; 0 takes free ones.", min=0, max=65535)] = 0,
    name: Annotated[str, typer.Option(help="Name of the model that clients ask for; default: the folder's.")] = "",
    dtype: Annotated[str, typer.Option(help="Type of weights and activations; default: the model's.")] = "",
    max_model_len: Annotated[int, typer.Option(help="Longest context, tokens; 0 = the model's.", min=0)] = 0,
    raw_logprobs: Annotated[bool, typer.Option("--raw-logprobs", help="Logprobs before temperature and truncation.")] = False,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key of the servers, made when it is not there; default: <state>/vllm/key.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Name of this launcher; default: the node's with -llm behind it.")] = None,
    grace_s: Annotated[float | None, typer.Option(help="Seconds that the end may take, for jobs that the servers have.")] = None,
    until: Annotated[str | None, typer.Option(help="When it ends: 8h, 90m, an ISO time; default: with the Slurm job.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands of the servers and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For a program: one line on standard output when all serve.")] = False,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
    log_json: Annotated[bool, typer.Option(help="Logs as JSON lines.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a model for a run on all GPUs of this machine until SIGTERM or Ctrl-C: vLLM servers, started again when they crash, each with a
    free port and a key on every route, in the run while it serves. At the end they get no new jobs and let those that they have end; a
    second signal does not wait. What follows `--` goes to vLLM. Exit codes as those of `rollstream node run`."""
    from ops.llm_server.command_line import read_config
    from ops.llm_server.gpus import divide, gpus_here
    from ops.llm_server.installation import find_vllm
    from ops.llm_server.key_file import key_in
    from ops.llm_server.node import ServersPlan, run_servers
    from ops.llm_server.settings import VllmSettings
    from ops.node.processes import rollstream_command
    from ops.node.settings import NodeSettings
    from pipeline.folders import Folders
    from pipeline.logs import configure_logs

    configure_logs(as_json=log_json, level=log_level)
    settings = NodeSettings.load(config, grace_s=grace_s, until=until)
    settings = NodeSettings.model_validate(settings.model_dump() | {"node": node or f"{settings.node_name}-llm"})
    folders = Folders.from_environment()
    vllm = VllmSettings.load(config, python=python, key_file=key_file)
    key = vllm.key_file or folders.state / "vllm" / "key"
    read_config(model)
    if cpu:
        parts: Sequence[tuple[str, ...]] = [()] * (servers or 1)
    else:
        parts = divide(gpus_here(gpus, os.environ), tensor_parallel_size, servers)
    find_vllm(vllm.python)  # once, not by each server at the same time
    serve = ["--model", model, "--host", host, "--key-file", str(key)]
    texts = {"--version": version, "--name": name, "--dtype": dtype, "--python": python, "--config": config and str(config.absolute())}
    for option, text in texts.items():
        serve += [option, text] if text else []
    serve += ["--max-model-len", str(max_model_len)] if max_model_len else []
    serve += [option for option, is_set in (("--cpu", cpu), ("--raw-logprobs", raw_logprobs)) if is_set]
    plan = ServersPlan(gpus=parts, serve=tuple(serve), extra=tuple(context.args), first_port=port, run=run)
    if dry_run:
        logs = folders.scratch / "logs" / settings.node_name
        for process in plan.processes(logs, grace_s=settings.grace_s, vllm_grace_s=vllm.grace_s):
            typer.echo(shlex.join(rollstream_command(process)))
        return
    key_in(key)

    def announce(addresses: Sequence[str]) -> None:
        if as_json:
            typer.echo(orjson.dumps({"run": run, "servers": list(addresses), "key_file": str(key)}).decode())
            return
        typer.echo(f"{len(addresses)} server{'s' if len(addresses) != 1 else ''} for run {run}: {' '.join(addresses)}")
        typer.echo(f"their key: workers read it with ROLLSTREAM_WORKER_MODEL_KEY_FILE={key}, a trainer sets run.servers.api_key")

    raise typer.Exit(asyncio.run(run_servers(plan, settings, vllm, config, announce=announce)))
