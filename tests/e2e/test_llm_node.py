"""`ops/launch llm`: the inference servers of a machine, as a person uses them; vLLM is the scripted server with vLLM's command line."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import psutil
import pytest

from ops.llm_server.tiny_model import write_tiny_model
from pipeline.testing import wait_in_thread
from tests.e2e.conftest import ROOT, Command
from tests.e2e.pretended_vllm import pretended_vllm
from tests.e2e.test_demo import processes_of
from workers.llm import connect_backend

NAME = socket.gethostname().split(".")[0] + "-llm"
START_S = 90.0
Node = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def node(environment: dict[str, str], home: Path) -> Iterator[Node]:
    """Starts `rollstream llm node` for run `mine`; ended after the test."""
    write_tiny_model(home / "tiny")
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        words = ["--model", str(home / "tiny"), "--run", "mine", "--python", str(pretended_vllm(home)), "--json", *arguments]
        with (home / "said").open("wb") as said, (home / "launcher.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", "llm", "node", *words],
                cwd=ROOT,
                env={**environment, "CUDA_VISIBLE_DEVICES": "0,1,2,3", **variables},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def answers(url: str, key: str) -> bool:
    async with connect_backend(url, api_key=key) as client:
        return (await client.control.health()).alive


@pytest.mark.timeout(300)
def test_the_gpus_of_a_machine_serve_a_run_until_down(node: Node, command: Command, home: Path) -> None:
    """From free ports to the end: a server whose command is killed comes back under another address, and its old one leaves the run."""

    def in_run() -> dict[str, str]:
        """Address -> label of its weights."""
        listed = orjson.loads(command("ops.cli", "llm", "list", "--run", "mine", "--json").stdout)
        return {server["url"]: server["version"] for server in listed["servers"]}

    launcher = node("--tensor-parallel-size", "2")
    wait_in_thread(lambda: (home / "said").stat().st_size > 0, "all servers serve", timeout_s=START_S)
    said = orjson.loads((home / "said").read_bytes())
    key = Path(said["key_file"]).read_text().strip()
    before = in_run()
    logs = home / "scratch/logs" / NAME
    children = {child.cmdline()[-1]: child for child in psutil.Process(launcher.pid).children() if "serve" in child.cmdline()}

    assert sorted((home / "gpus").read_text().split("\n")) == ["", "0,1 2", "2,3 2"]
    assert {*before} == {*said["servers"]}
    assert len({*before.values()}) == 2
    assert all(label.startswith("mine/start-") for label in before.values())
    assert [asyncio.run(answers(url, key)) for url in before] == [True, True]
    assert [asyncio.run(answers(url, "")) for url in before] == [False, False], "no route is open without the key"
    assert NAME in command("ops.cli", "node", "list").stdout

    killed = children["2,3"]
    old = orjson.loads((logs / "llm-1.json").read_bytes())["url"]
    killed.send_signal(signal.SIGKILL)

    wait_in_thread(lambda: orjson.loads((logs / "llm-1.json").read_bytes())["url"] != old, "another one serves", timeout_s=START_S)
    after = in_run()
    assert (len(after), old in after) == (2, False)
    shown = orjson.loads(command("ops.cli", "node", "show", NAME, "--json").stdout)
    assert shown["fields"]["crash.name"] == "llm-1"
    assert shown["fields"]["serves"] == "mine"

    down = command("ops.node.down")

    assert (down.returncode, f"{NAME}: ended" in down.stdout) == (0, True), down.stdout
    assert launcher.wait(30) == 0, (home / "launcher.log").read_text()
    wait_in_thread(lambda: not processes_of(home), "nothing is left", timeout_s=30)
    assert in_run() == {}
    told = b"".join(path.read_bytes() for path in [*logs.rglob("*.*"), home / "said", home / "launcher.log"] if path.is_file())
    assert key.encode() not in told


def test_servers_that_do_not_start_end_the_launcher_with_the_reason(node: Node, home: Path) -> None:
    launcher = node("--cpu", PRETEND_FAILURE="RuntimeError: Failed to infer device type")

    assert launcher.wait(90) == 1
    told = (home / "launcher.log").read_text()
    assert "llm-0 crashed once, and a restart does not mend it" in told
    assert "no GPU that vLLM can use: --cpu" in told
    assert not processes_of(home)


def test_servers_end_before_the_time_that_was_given(node: Node, home: Path) -> None:
    launcher = node("--cpu", "--until", "11s", "--grace-s", "10", PRETEND_LOADING="yes")

    assert launcher.wait(90) == 0, (home / "launcher.log").read_text()
    assert "its end is near" in (home / "launcher.log").read_text()
    assert not processes_of(home)
