"""A server and the client in front of it: a scripted one a wire shape, the tiny model's where torch is installed, and a real vLLM where
there is one.

The same suite runs on all, so what the scripted server imitates is held to the original. A test that needs the scripted server itself,
to arm faults or to look into its engine, takes the fixture `ours`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pytest

from pipeline.engines import Exchange
from pipeline.engines.metrics import samples_of
from pipeline.messages import Sampling
from tests.vllm_server import REAL, VllmServer
from workers.llm import GenRequest, HttpBackend, connect_backend
from workers.llm.scripted import ModelServer, Problem, ScriptedServer, ServerOptions
from workers.llm.tokenizer import Tokenizer, load

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
    "sglang-0.5.10": ServerOptions(wire="sglang-0.5.10"),
    "sglang": ServerOptions(wire="sglang-0.5"),
}


@dataclass
class Pair:
    """A server and its client, as far as every server can be asked."""

    client: HttpBackend
    tokenizer: Tokenizer
    idle_load: int = field(default=0, init=False)
    """What the server's count of calls shows when there are none: a client that goes away counts down twice in vLLM 0.32."""

    tells_of_pauses = True
    caches_prefixes = True

    @property
    def end_id(self) -> int:
        """The model's end token."""
        return self.tokenizer.special("<|im_end|>")

    def runs(self, calls: int) -> Callable[[], Awaitable[bool]]:
        """Whether the server samples that many calls: a condition to wait for."""

        async def look() -> bool:
            return (await self.client.control.health()).running == calls

        return look

    async def is_idle(self) -> bool:
        """Whether the server has no call, running or waiting."""
        health = await self.client.control.health()
        return health.alive and not health.running and not health.waiting

    async def has_calls(self) -> bool:
        """Whether a call has reached the server, held up by a pause or not."""
        return await self.load() > self.idle_load

    async def load(self) -> int:
        """The server's count of calls."""
        match await self._get("/load"):
            case {"server_load": int(calls)}:
                return calls
            case other:
                raise AssertionError(f"expected a server_load, got {other!r}")

    async def tokens_out(self) -> float:
        """Tokens that the server has sampled since its start."""
        name = "vllm:generation_tokens_total"
        return sum(samples_of(await self._get("/metrics"), (name,))[name])

    async def _get(self, path: str) -> object:
        async with Exchange(self.client.url) as http:
            return await http.get(path, parse=False)


@dataclass
class ScriptedPair(Pair):
    """One whose server is ours."""

    server: ScriptedServer

    @property
    def path(self) -> str:
        """The route generation takes."""
        return self.server.routes.generation[0]

    async def has_calls(self) -> bool:
        """Whether a call has reached the server, held up by a pause or not."""
        return bool(self.server.engine.request_ids())

    async def tokens_out(self) -> float:
        """Tokens that the server has sampled since its start."""
        return self.server.engine.generation_tokens


def a_request(request_id: str = "job.1.0.0", **changes: object) -> GenRequest:
    """A request for the first problem."""
    request = GenRequest(request_id=request_id, prompt_ids=PROMPT, sampling=Sampling(), max_tokens=500, seed=3)
    return replace(request, **changes)  # type: ignore[arg-type]  # the record's own fields


def scripted(ids: list[int], request_id: str = "job.1.0.0", *, delay_ms: float = 0, **changes: object) -> GenRequest:
    """A request whose answer is given."""
    return a_request(request_id, extra_args={"script": ids, "delay_ms": delay_ms}, **changes)


QUICK_WIRES = ("generate-0.33", "completions-0.33", "unix-socket", "sglang")
"""The newest of each shape, and an older one."""


REAL_WIRES: dict[str, Literal["generate", "completions"]] = {"vllm-generate": "generate", "vllm-completions": "completions"}
SCRIPTED_PARAMS = [pytest.param(wire, marks=() if wire in QUICK_WIRES else pytest.mark.slow) for wire in WIRES]
TINY = pytest.mark.skipif(find_spec("torch") is None or find_spec("safetensors") is None, reason="needs torch: the extra train-tiny")
TINY_PARAMS = [pytest.param("tiny", marks=TINY)]
REAL_PARAMS = [pytest.param(wire, marks=REAL) for wire in REAL_WIRES]


@asynccontextmanager
async def scripted_pair(wire: str, tmp_path: Path) -> AsyncIterator[ScriptedPair]:
    """A scripted server of a wire, already probed."""
    socket_path = tmp_path / "llm.sock" if wire == "unix-socket" else None
    async with ScriptedServer(WIRES[wire], PROBLEMS, socket_path=socket_path) as server, connect_backend(server.url) as client:
        await client.probe()  # else a test that waits for a running call could meet the probe's
        made = ScriptedPair(client, server.tokenizer, server)
        made.tells_of_pauses = wire != "sglang-0.5.10"
        yield made


@asynccontextmanager
async def tiny_pair() -> AsyncIterator[Pair]:
    """A server of the tiny model, with random weights."""
    from workers.llm.tiny.config import TinyConfig
    from workers.llm.tiny.engine import TinyEngine
    from workers.llm.tiny.model import TinyLM

    tokenizer = load()
    model = TinyLM(TinyConfig(vocab_size=tokenizer.vocab_size, width=32, layers=1, heads=1, hidden=32, max_len=1024))
    options = ServerOptions(max_model_len=1024, max_running=8)
    async with (
        ModelServer(options, tokenizer, lambda: TinyEngine(options, tokenizer, model)) as server,
        connect_backend(server.url) as client,
    ):
        await client.probe()
        made = Pair(client, tokenizer)
        made.caches_prefixes = False
        yield made


@asynccontextmanager
async def real_pair(wire: str, server: VllmServer) -> AsyncIterator[Pair]:
    """The session's vLLM through one of its routes; left as it was found."""
    async with connect_backend(server.url, endpoint=REAL_WIRES[wire]) as client:
        await client.probe()
        await client.control.set_version("default")
        assert await client.control.reset_cache(), "a call of an earlier test still runs"
        made = Pair(client, load(server.folder))
        made.idle_load = await made.load()
        try:
            yield made
        finally:
            await client.control.resume()


@pytest.fixture(params=[*SCRIPTED_PARAMS, *TINY_PARAMS, *REAL_PARAMS])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """A running pair for every wire shape, scripted and real."""
    if request.param == "tiny":
        async with tiny_pair() as small:
            yield small
    elif request.param in REAL_WIRES:
        async with real_pair(request.param, request.getfixturevalue("vllm_server")) as found:
            yield found
    else:
        async with scripted_pair(request.param, tmp_path) as made:
            yield made


@pytest.fixture(params=SCRIPTED_PARAMS)
async def ours(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ScriptedPair]:
    """A running pair for every wire shape of the scripted server."""
    async with scripted_pair(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def newest() -> AsyncIterator[ScriptedPair]:
    """A pair on the wire of 0.32, for what does not depend on the shape."""
    async with ScriptedServer(ServerOptions(), PROBLEMS) as server, connect_backend(server.url) as client:
        yield ScriptedPair(client, server.tokenizer, server)
