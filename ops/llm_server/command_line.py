"""The command line and environment of a vLLM server for reinforcement learning, as pure functions.

Why each flag is there stands beside it. A flag that this version of vLLM does not know is left out and named in `Command.left_out`:
what that means is found by the client's probe, as for a server that somebody else started.

Two facts of vLLM on the CPU shape `_cpu`:
  * A prompt that is computed in pieces ends the engine when its request has a seed (0.32.0: `CPU Generator does not use offset`), and all
    our requests have one. So prompts are computed whole: no chunked prefill, and a batch takes the longest prompt.
  * Blocks of the prefix cache have 128 tokens unless told; with 32, the least there is, later turns of a job reuse most of earlier ones.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.llm_server.installation import INSIDE, VllmInstallation
from pipeline.errors import InvalidRequest
from pipeline.usable_cores import usable_cores

CPU_BLOCK_SIZE = 32
CPU_MAX_SEQS = 32
"""More sequences at a time than two to eight cores make faster."""
CPU_MOST_CONTEXT = 32_768
"""Whole prompts need a batch of the context's length; a longer one must be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What `rollstream llm serve` was asked for."""

    model: str
    """Folder of the model, or a name on a hub."""
    served_name: str
    host: str = "127.0.0.1"
    cpu: bool = False
    dtype: str = ""
    """Empty: as the model says."""
    max_model_len: int = 0
    """0: the model's, on the CPU at most `CPU_MOST_CONTEXT`."""
    raw_logprobs: bool = False
    """Logprobs of the model's own distribution instead of the one sampled from."""
    dev_mode: bool | None = None
    """Routes that pause, label and load weights; None = wherever a key guards them, and on loopback."""
    scripted: bool = False
    """Load the logits processor by which requests dictate what is said: for tests."""
    api_key: str = ""
    """Demanded on every route, where vLLM takes a middleware, else where its own check does."""
    gpus: tuple[str, ...] = ()
    """As CUDA names them (`0`, `GPU-4f2...`); one server is spread over them. Empty = what the environment says."""
    cpu_threads: int = 0
    cpu_kv_cache_mib: int = 256
    extra: tuple[str, ...] = ()
    """Arguments for vLLM, passed on as they are."""

    def guards_all(self, vllm: VllmInstallation) -> bool:
        """Whether every route demands the key."""
        return bool(self.api_key) and "--middleware" in vllm.flags

    def has_dev_mode(self, vllm: VllmInstallation) -> bool:
        """Whether the routes for training are there.

        Raises:
            InvalidRequest: they would be open to whoever reaches the address.
        """
        is_safe = self.guards_all(vllm) or is_loopback(self.host)
        if self.dev_mode and not is_safe:
            how = (
                f"vLLM {vllm.version} cannot guard them by a key: listen on loopback" if self.api_key else "--key-file guards them by a key"
            )
            raise InvalidRequest(f"whoever reaches {self.host} could pause this server and load weights into it: {how}, or --no-dev-mode")
        return is_safe if self.dev_mode is None else self.dev_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is started."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """Beside that of this process; keys are here, never in a command line."""
    left_out: tuple[str, ...]
    """Flags that this version does not know."""


def build_command(plan: ServePlan, vllm: VllmInstallation, *, port: int) -> Command:
    """The command for one version of vLLM.

    Raises:
        InvalidRequest: the model's folder is not one, or the plan cannot be served by that version, or not safely.
    """
    config = read_config(plan.model)
    wanted: list[tuple[str, str | None]] = [
        ("--host", plan.host),
        ("--port", str(port)),
        ("--served-model-name", plan.served_name),
        # training scales by the temperature, so it wants the distribution that was sampled from
        ("--logprobs-mode", "raw_logprobs" if plan.raw_logprobs else "processed_logprobs"),
        # sampling is what the request says, not what the model's folder suggests
        ("--generation-config", "vllm"),
        # /inference/v1: ids in, ids out, with the version of every token
        ("--enable-scale-out", None),
        # cached tokens a call: the proof that a job's later turns meet its earlier ones
        ("--enable-prompt-tokens-details", None),
        ("--enable-prefix-caching", None),
        ("--enable-request-id-headers", None),
        ("--enable-server-load-tracking", None),
        ("--disable-uvicorn-access-log", None),
    ]
    if plan.guards_all(vllm):
        # vLLM's own check leaves the routes open that pause the engine and load weights
        wanted.append(("--middleware", "key_guard.KeyOnEveryRoute"))
    if len(plan.gpus) > 1:
        wanted.append(("--tensor-parallel-size", str(len(plan.gpus))))
    if plan.dtype:
        wanted.append(("--dtype", plan.dtype))
    if plan.cpu:
        wanted += _cpu(plan, config)
    elif plan.max_model_len:
        wanted.append(("--max-model-len", str(plan.max_model_len)))
    if plan.scripted:
        if "--logits-processors" not in vllm.flags:
            raise InvalidRequest(f"vLLM {vllm.version} takes no --logits-processors, so requests cannot dictate what it says")
        wanted.append(("--logits-processors", "scripted_logits:ScriptedLogits"))
    arguments = [str(vllm.python), "-P", "-m", *vllm.module]
    # `serve` takes the model by its place since 0.2, the module by its flag
    arguments += [plan.model] if vllm.module[1:] == ("serve",) else ["--model", plan.model]
    left_out = []
    for flag, value in wanted:
        if flag not in vllm.flags:
            left_out.append(flag)
            continue
        arguments += [flag] if value is None else [flag, value]
    return Command(arguments=(*arguments, *plan.extra), environment=_environment(plan, vllm), left_out=tuple(left_out))


def _cpu(plan: ServePlan, config: Mapping[str, object]) -> list[tuple[str, str | None]]:
    length = plan.max_model_len or min(context_of(config), CPU_MOST_CONTEXT)
    return [
        ("--max-model-len", str(length)),
        ("--no-enable-chunked-prefill", None),
        ("--max-num-batched-tokens", str(max(length, 2048))),
        ("--max-num-seqs", str(CPU_MAX_SEQS)),
        ("--block-size", str(CPU_BLOCK_SIZE)),
        ("--kv-cache-memory-bytes", str(plan.cpu_kv_cache_mib * 2**20)),
        # compilation takes minutes and gives little on a few cores
        ("--enforce-eager", None),
    ]


def _environment(plan: ServePlan, vllm: VllmInstallation) -> dict[str, str]:
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_SERVER_DEV_MODE": "1" if plan.has_dev_mode(vllm) else "0",
        # only our own folder, where it is needed: another person's PYTHONPATH could shadow what vLLM imports
        "PYTHONPATH": str(INSIDE) if plan.scripted or plan.guards_all(vllm) else "",
    }
    if plan.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpus)
    if Path(plan.model).is_dir():
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if plan.api_key:
        # not --api-key: everybody reads the arguments of a process, its owner alone its environment, and vLLM logs its arguments
        env["VLLM_API_KEY"] = plan.api_key
    if plan.cpu:
        # one process a server: binding threads to cores makes two servers on one machine fight for the same ones
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(plan.cpu_threads or usable_cores())}
    return env


def read_config(model: str) -> Mapping[str, object]:
    """The model's `config.json`; empty for a name on a hub.

    Raises:
        InvalidRequest: the folder is not there, or is no model's.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if folder.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
            raise InvalidRequest(f"no folder {model}: give the folder of a model, or its name on a hub (owner/name)", field="model")
        return {}
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidRequest(
            f"{folder} has no config.json: it must be the folder with config.json, tokenizer.json and the *.safetensors of a model; "
            "`rollstream llm tiny DIR` makes a small one",
            field="model",
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", field="model") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{path} is no JSON object", field="model")
    return found


def context_of(config: Mapping[str, object]) -> int:
    """The longest context that a configuration names; `CPU_MOST_CONTEXT` where it names none."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(length := part.get("max_position_embeddings"), int):
            return length
    return CPU_MOST_CONTEXT


def is_loopback(host: str) -> bool:
    """Whether an address stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown(command: Command) -> str:
    """The command for a shell, the key left out."""
    environment = {name: "..." if name == "VLLM_API_KEY" else value for name, value in command.environment.items() if value}
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(command.arguments)])


def default_name(model: str) -> str:
    """The name under which clients ask for a model: the last part of its path, or its name on a hub."""
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else model
