"""The command line of a vLLM server: what is in it for training, for the CPU, for a version that knows less."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops.llm_server.command_line import ServePlan, build_command, default_name, is_loopback, shown
from ops.llm_server.failures import PORT_TAKEN, why_it_ended
from ops.llm_server.installation import VllmInstallation
from ops.llm_server.progress import milestone
from pipeline.errors import InvalidRequest

FLAGS = frozenset(
    {
        *("--host", "--port", "--model", "--served-model-name", "--logprobs-mode", "--generation-config", "--enable-scale-out"),
        *("--enable-prompt-tokens-details", "--enable-prefix-caching", "--enable-request-id-headers", "--enable-server-load-tracking"),
        *("--disable-uvicorn-access-log", "--dtype", "--max-model-len", "--no-enable-chunked-prefill", "--max-num-batched-tokens"),
        *("--max-num-seqs", "--block-size", "--kv-cache-memory-bytes", "--enforce-eager", "--logits-processors"),
        *("--middleware", "--tensor-parallel-size"),
    }
)
VLLM = VllmInstallation(
    python=Path("/opt/vllm/bin/python"), version="0.32.0", device="cpu", flags=FLAGS, module=("vllm.entrypoints.cli.main", "serve")
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder."""
    folder = tmp_path / "qwen-tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 40_960}))
    return folder


def a_plan(model: Path, **changes: object) -> ServePlan:
    plan = ServePlan(model=str(model), served_name="tiny")
    return replace(plan, **changes)  # type: ignore[arg-type]  # the record's own fields


def value_of(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_what_training_needs_is_always_there(model: Path) -> None:
    command = build_command(a_plan(model), VLLM, port=8100)

    assert command.arguments[:6] == (str(VLLM.python), "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model))
    assert value_of(command.arguments, "--logprobs-mode") == "processed_logprobs"
    assert value_of(command.arguments, "--generation-config") == "vllm"
    assert value_of(command.arguments, "--port") == "8100"
    assert {"--enable-scale-out", "--enable-prompt-tokens-details", "--enable-prefix-caching"} <= set(command.arguments)
    assert command.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert command.left_out == ()
    assert "--enforce-eager" not in command.arguments


def test_a_module_that_is_no_command_takes_the_model_by_its_flag(model: Path) -> None:
    command = build_command(a_plan(model), replace(VLLM, module=("vllm.entrypoints.openai.api_server",)), port=1)

    assert command.arguments[3:6] == ("vllm.entrypoints.openai.api_server", "--model", str(model))


def test_flags_that_a_version_does_not_know_are_left_out_and_named(model: Path) -> None:
    older = replace(VLLM, version="0.29.0", flags=FLAGS - {"--enable-scale-out", "--enable-server-load-tracking"})

    command = build_command(a_plan(model), older, port=1)

    assert command.left_out == ("--enable-scale-out", "--enable-server-load-tracking")
    assert "--enable-scale-out" not in command.arguments


def test_on_the_cpu_no_prompt_is_computed_in_pieces(model: Path) -> None:
    """vLLM 0.32.0 on the CPU: a prompt longer than a batch, of a request with a seed, ended the engine and every call on it."""
    command = build_command(a_plan(model, cpu=True, cpu_threads=3, cpu_kv_cache_mib=64), VLLM, port=1)

    length = int(value_of(command.arguments, "--max-model-len"))
    assert length == 32_768
    assert int(value_of(command.arguments, "--max-num-batched-tokens")) >= length
    assert "--no-enable-chunked-prefill" in command.arguments
    assert value_of(command.arguments, "--kv-cache-memory-bytes") == str(64 * 2**20)
    assert (command.environment["OMP_NUM_THREADS"], command.environment["VLLM_CPU_OMP_THREADS_BIND"]) == ("3", "nobind")


def test_a_key_is_in_the_environment_and_nowhere_else(model: Path) -> None:
    command = build_command(a_plan(model, api_key="s3cret"), VLLM, port=1)

    assert command.environment["VLLM_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(command.arguments)
    assert "s3cret" not in shown(command)
    assert "VLLM_API_KEY=..." in shown(command)


@pytest.mark.parametrize(
    ("host", "key", "asked", "has"),
    [
        ("127.0.0.1", "", None, "1"),
        ("10.0.0.7", "", None, "0"),
        ("10.0.0.7", "k", None, "1"),
        ("10.0.0.7", "k", True, "1"),
        ("10.0.0.7", "k", False, "0"),
        ("::1", "", False, "0"),
    ],
)
def test_routes_for_training_are_there_on_loopback_and_behind_a_key(model: Path, host: str, key: str, asked: bool | None, has: str) -> None:
    command = build_command(a_plan(model, host=host, api_key=key, dev_mode=asked), VLLM, port=1)

    assert command.environment["VLLM_SERVER_DEV_MODE"] == has
    assert ("--middleware" in command.arguments) == bool(key)


def test_routes_for_training_are_never_open_to_others(model: Path) -> None:
    """vLLM's own key does not guard them."""
    older = replace(VLLM, version="0.5.0", flags=FLAGS - {"--middleware"})

    assert build_command(a_plan(model, host="10.0.0.7", api_key="k"), older, port=1).environment["VLLM_SERVER_DEV_MODE"] == "0"
    with pytest.raises(InvalidRequest, match="--key-file guards them"):
        build_command(a_plan(model, host="10.0.0.7", dev_mode=True), VLLM, port=1)
    with pytest.raises(InvalidRequest, match=r"vLLM 0\.5\.0 cannot guard them by a key"):
        build_command(a_plan(model, host="10.0.0.7", dev_mode=True, api_key="k"), older, port=1)


def test_a_server_of_two_gpus_of_a_node_is_started_like_this(model: Path) -> None:
    """The whole command: each flag as vLLM 0.31 to 0.33 has it, what is secret in the environment."""
    plan = ServePlan(model=str(model), served_name="policy", host="10.0.0.7", api_key="s3cret", gpus=("2", "3"), extra=("--seed", "1"))

    command = build_command(plan, replace(VLLM, device="cuda"), port=8000)

    assert command.arguments == (
        *("/opt/vllm/bin/python", "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--host", "10.0.0.7", "--port", "8000", "--served-model-name", "policy"),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-scale-out"),
        *("--enable-prompt-tokens-details", "--enable-prefix-caching", "--enable-request-id-headers", "--enable-server-load-tracking"),
        *("--disable-uvicorn-access-log", "--middleware", "key_guard.KeyOnEveryRoute", "--tensor-parallel-size", "2", "--seed", "1"),
    )
    guard = Path(command.environment["PYTHONPATH"], "key_guard.py")
    assert guard.is_file()
    assert command.environment == {
        "CUDA_VISIBLE_DEVICES": "2,3",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(guard.parent),
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_API_KEY": "s3cret",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }


def test_requests_dictate_only_where_that_was_asked_for(model: Path) -> None:
    plain, scripted = (build_command(a_plan(model, scripted=asked), VLLM, port=1) for asked in (False, True))

    assert "--logits-processors" not in plain.arguments
    assert plain.environment["PYTHONPATH"] == ""
    assert Path(scripted.environment["PYTHONPATH"], "scripted_logits.py").is_file()
    with pytest.raises(InvalidRequest, match="no --logits-processors"):
        build_command(a_plan(model, scripted=True), replace(VLLM, flags=frozenset()), port=1)


def test_what_is_passed_on_comes_last_and_so_wins(model: Path) -> None:
    command = build_command(a_plan(model, extra=("--max-num-seqs", "4")), VLLM, port=1)

    assert command.arguments[-2:] == ("--max-num-seqs", "4")


@pytest.mark.parametrize("name", ["nowhere", "/nowhere/at/all", "."])
def test_what_is_no_model_is_told_before_anything_is_started(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidRequest, match=r"config\.json|no folder"):
        build_command(ServePlan(model=name, served_name="x"), VLLM, port=1)


def test_a_name_on_a_hub_is_left_to_vllm() -> None:
    command = build_command(ServePlan(model="owner/name", served_name=default_name("owner/name")), VLLM, port=1)

    assert "owner/name" in command.arguments
    assert "HF_HUB_OFFLINE" not in command.environment


def test_a_name_is_the_folders_own(model: Path) -> None:
    assert default_name(str(model)) == "qwen-tiny"


def test_loopback_is_what_stays_on_this_machine() -> None:
    assert [host for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.1.2.3", "node7") if is_loopback(host)] == [
        "127.0.0.1",
        "::1",
        "localhost",
    ]


REASONS = {
    "OSError: [Errno 98] Address already in use": PORT_TAKEN,
    "ERROR Worker proc VllmWorker-0 died unexpectedly (exit code: -4), shutting down executor.": "--dtype float32",
    "RuntimeError: Failed to infer device type": "--cpu",
    "ValueError: To serve at least one request with the models's max seq len (8192), 2.1 GiB KV cache is needed": "--max-model-len",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate": "not enough memory",
    "api_server.py: error: unrecognized arguments: --nope": "one of the arguments after `--`",
    "The checkpoint ... but Transformers does not recognize this architecture": "newer vLLM",
    "RuntimeError: Cannot find any model weights with `/m`": "*.safetensors",
}


@pytest.mark.parametrize(("line", "says"), REASONS.items())
def test_a_failed_start_is_explained_with_what_to_do(line: str, says: str) -> None:
    assert says in why_it_ended(f"INFO starting\n{line}\nTraceback: more\n", 1)


def test_a_start_that_was_killed_speaks_of_memory_and_any_other_of_its_log() -> None:
    assert "memory ran out" in why_it_ended("INFO starting\n", 137)
    assert "exit code 7" in why_it_ended("INFO starting\n", 7)


def test_the_newest_milestone_of_a_log_is_told() -> None:
    log = (
        "Resolved architecture: Qwen3ForCausalLM\nStarting to load model /m\nLoading safetensors checkpoint shards:  40% Completed | 2/5\n"
    )

    assert milestone(log) == "loading weights: 40 %"
    assert milestone(log + "Enforce eager set, disabling torch.compile\n") == "loading weights: 40 %"
    assert milestone("nothing of note") == ""
