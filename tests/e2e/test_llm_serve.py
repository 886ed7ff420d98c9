"""`rollstream llm serve`, as a user runs it; the vLLM behind it is the scripted server under vLLM's command line."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import orjson
import psutil
import pytest

from ops.llm_server.tiny_model import write_tiny_model
from pipeline.engines.errors import Refused
from pipeline.engines.exchange import Exchange
from pipeline.testing.wait import wait_in_thread
from tests.e2e.conftest import ROOT, Command
from tests.e2e.pretended_vllm import pretended_vllm
from tests.e2e.test_demo import processes_of
from tests.secret_words import a_secret, words_in
from tests.vllm_server import START_TIMEOUT_S, serving
from workers.llm import connect_backend

Serve = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return folder


@pytest.fixture
def serve(environment: dict[str, str], home: Path, model: Path) -> Iterator[Serve]:
    """Starts `rollstream llm serve --json`; ended after the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
            words = ["--model", str(model), "--cpu", "--python", str(pretended_vllm(home)), "--json", "--grace-s", "2", *arguments]
            process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", "llm", "serve", *words],
                cwd=ROOT,
                env={**environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def told(process: subprocess.Popen[bytes]) -> dict[str, str]:
    """What it says when it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, _rest(process.stderr)
    found: dict[str, str] = orjson.loads(line)
    return found


def _rest(stream: IO[bytes] | None) -> str:
    assert stream is not None
    return stream.read().decode()


async def is_alive(url: str) -> bool:
    async with connect_backend(url) as client:
        return (await client.control.health()).alive


def test_a_server_serves_is_announced_and_leaves_nothing_behind(serve: Serve, home: Path) -> None:
    process = serve()
    said = told(process)
    state = Path(said["state_file"])

    assert asyncio.run(is_alive(said["url"]))
    assert orjson.loads(state.read_bytes())["url"] == said["url"]
    assert said["model"] == "tiny"

    process.terminate()

    assert process.wait(20) == 0
    assert not state.exists()
    assert not processes_of(home)
    progress = _rest(process.stderr)
    assert "reading the model: Qwen3ForCausalLM" in progress
    assert "this version does not know" in progress
    assert "--enable-prompt-tokens-details" in progress


def test_kill_9_of_the_command_takes_the_server_and_its_workers_along(serve: Serve, home: Path) -> None:
    process = serve()
    told(process)
    assert processes_of(home)

    process.kill()

    wait_in_thread(lambda: not processes_of(home), "nothing of the server is left", timeout_s=20)


def test_a_server_has_its_place_in_a_run_for_as_long_as_it_serves(serve: Serve, command: Command) -> None:
    process = serve("--run", "mine", "--version", "1.0")
    said = told(process)

    listed = orjson.loads(command("ops.cli", "llm", "list", "--run", "mine", "--json").stdout)
    process.terminate()

    assert process.wait(20) == 0
    assert said["url"] in str(listed)
    assert said["url"] not in command("ops.cli", "llm", "list", "--run", "mine", "--json").stdout


def test_a_key_is_read_from_its_file_and_guards_generation(serve: Serve, home: Path) -> None:
    key = a_secret("model", may_be_in_environments=True)
    (home / "model.key").write_text(f"{key}\n")

    process = serve("--key-file", str(home / "model.key"))
    said = told(process)

    async def ask(key: str) -> int:
        async with connect_backend(said["url"], api_key=key) as client:
            return (await client.probe()).max_model_len

    assert asyncio.run(ask(key)) > 0
    with pytest.raises(Exception, match="401"):
        asyncio.run(ask("wrong"))
    assert not words_in("".join(processes_of(home)))
    assert asyncio.run(is_alive(said["url"])) is False, "no route is open without the key"


def test_a_server_that_answers_without_its_key_is_ended(serve: Serve, home: Path) -> None:
    """Its routes that load weights would be open: a vLLM that takes the guard and does not load it."""
    (home / "model.key").write_text("s3cret\n")

    process = serve("--key-file", str(home / "model.key"), PRETEND_OPEN="yes")

    assert process.wait(30) == 2
    assert "it answers without its key" in _rest(process.stderr)
    assert not processes_of(home)


@pytest.mark.vllm
@pytest.mark.timeout(START_TIMEOUT_S + 60)
def test_a_real_vllm_answers_nothing_without_its_key(tmp_path: Path) -> None:
    """Its own key leaves most of these open. In `float32`, which every processor has."""
    (tmp_path / "model.key").write_text("s3cret\n")
    routes = ("health", "metrics", "is_paused", "pause", "collective_rpc", "update_weight_version", "tokenize", "openapi.json", "v1/models")

    async def ask(url: str, route: str) -> str:
        async with Exchange(url, "wrong") as stranger:
            try:
                return str(await stranger.get(f"/{route}", parse=False))
            except Refused as refusal:
                return str(refusal.status)

    with serving(tmp_path, "--key-file", str(tmp_path / "model.key"), "--dtype", "float32") as server:
        answers = {route: asyncio.run(ask(server.url, route)) for route in routes}

    assert answers == dict.fromkeys(routes, "401")


def test_a_start_that_fails_says_why_and_what_to_do(serve: Serve, home: Path) -> None:
    process = serve(PRETEND_FAILURE="RuntimeError: Failed to infer device type")

    assert process.wait(30) == 2
    said = _rest(process.stderr)
    assert "no GPU that vLLM can use: --cpu" in said
    assert "RuntimeError: Failed to infer device type" in said
    assert not processes_of(home)


def test_a_port_that_somebody_has_is_told(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        process = serve("--port", str(port))

        assert process.wait(30) == 2
    assert f"port {port} is taken: --port 0 takes a free one" in _rest(process.stderr)


def test_a_server_that_ends_by_itself_ends_the_command_with_the_reason(serve: Serve, home: Path) -> None:
    process = serve()
    state = Path(told(process)["state_file"])
    guarded = [line for line in processes_of(home) if "workers.llm.scripted" in line]
    assert guarded

    for server in _guard_of(process).children():
        server.kill()

    assert process.wait(20) == 1
    assert not state.exists()
    assert "the server is gone" in _rest(process.stderr)


def _guard_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    [guard] = [child for child in psutil.Process(process.pid).children() if "ops.group_guard" in child.cmdline()]
    return guard


def test_it_ends_when_it_is_told_to_before_the_server_is_there(serve: Serve, home: Path) -> None:
    process = serve(PRETEND_LOADING="yes")
    assert process.stderr is not None
    assert any(b"reading the model" in line for line in process.stderr)

    process.send_signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert not processes_of(home)
    assert process.stdout is not None
    assert process.stdout.read() == b""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "/nowhere"), "no folder /nowhere"),
        (("--model", "{model}", "--python", "/nowhere/python"), "no interpreter at /nowhere/python"),
        (("--model", "{model}", "--python", sys.executable), "has no vLLM"),
    ],
    ids=["no model", "no interpreter", "no vllm"],
)
def test_what_cannot_be_served_is_told_before_anything_starts(command: Command, model: Path, words: tuple[str, ...], says: str) -> None:
    done = command("ops.cli", "llm", "serve", *(word.format(model=model) for word in words))

    assert done.returncode == 2
    assert says in done.stderr


def test_the_command_writes_the_tiny_model(command: Command, home: Path, model: Path) -> None:
    done = command("ops.cli", "llm", "tiny", str(home / "tiny"))

    assert done.returncode == 0, done.stderr
    assert "random parameters, seed 0, context 32,768, template qwen" in done.stdout
    assert {file.name: file.read_bytes() for file in (home / "tiny").iterdir()} == {
        file.name: file.read_bytes() for file in model.iterdir()
    }


def test_a_dry_run_prints_the_command_and_starts_nothing(command: Command, home: Path, model: Path) -> None:
    words = ("--model", str(model), "--cpu", "--python", str(pretended_vllm(home)), "--port", "8123", "--dry-run", "--", "--seed", "3")

    done = command("ops.cli", "llm", "serve", *words)

    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("--max-model-len 32768 --seed 3")
    assert "--port 8123" in done.stdout
    assert not processes_of(home)
