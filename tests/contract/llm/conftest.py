"""One scripted server a wire shape, and the client in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipeline.messages import Sampling
from workers.llm import GenRequest, VllmBackend
from workers.llm.scripted import Problem, ScriptedServer, ServerOptions
from workers.llm.tokenizer import load

PROBLEMS = [Problem("What is 3 + 4?", "7"), Problem("What is one half of 3?", "\\frac{3}{2}")]
PROMPT = load().encode_template("<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n")

WIRES: dict[str, ServerOptions] = {
    "generate-0.31": ServerOptions(wire="0.31"),
    "generate-0.32": ServerOptions(wire="0.32"),
    "generate-0.33": ServerOptions(wire="0.33"),
    "completions-0.31": ServerOptions(wire="0.31", scale_out=False),
    "completions-0.32": ServerOptions(wire="0.32", scale_out=False),
    "completions-0.33": ServerOptions(wire="0.33", scale_out=False),
    "unix-socket": ServerOptions(wire="0.32"),
}


@dataclass
class Pair:
    """A server and its client."""

    server: ScriptedServer
    client: VllmBackend

    @property
    def path(self) -> str:
        """The route generation takes."""
        return "/inference/v1/generate" if self.server.options.scale_out else "/v1/completions"


def a_request(request_id: str = "job.1.0.0", **changes: object) -> GenRequest:
    """A request for the first problem."""
    request = GenRequest(request_id=request_id, prompt_ids=PROMPT, sampling=Sampling(), max_tokens=500, seed=3)
    return replace(request, **changes)  # type: ignore[arg-type]  # the record's own fields


def scripted(ids: list[int], request_id: str = "job.1.0.0", *, delay_ms: float = 0, **changes: object) -> GenRequest:
    """A request whose answer is given."""
    return a_request(request_id, extra_args={"script": ids, "delay_ms": delay_ms}, **changes)


QUICK_WIRES = ("generate-0.33", "completions-0.33", "unix-socket")
"""The newest of each shape, and an older one."""


@pytest.fixture(params=[pytest.param(wire, marks=() if wire in QUICK_WIRES else pytest.mark.slow) for wire in WIRES])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """A running pair for every wire shape, the server already probed."""
    socket_path = tmp_path / "llm.sock" if request.param == "unix-socket" else None
    async with (
        ScriptedServer(WIRES[request.param], PROBLEMS, socket_path=socket_path) as server,
        VllmBackend(server.url) as client,
    ):
        await client.probe()  # else a test that waits for a running call could meet the probe's
        yield Pair(server, client)


@pytest.fixture
async def newest() -> AsyncIterator[Pair]:
    """A pair on the wire of 0.32, for what does not depend on the shape."""
    async with ScriptedServer(ServerOptions(), PROBLEMS) as server, VllmBackend(server.url) as client:
        yield Pair(server, client)
