"""A gateway and real workers in the test's own process, with a scripted model that knows the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import orjson

from ops.gateway import GatewaySettings, Listening
from ops.gateway.serving import serve
from pipeline.messages import Stage
from pipeline.process import Shutdown
from pipeline.settings import QueueSettings
from workers.llm.scripted import Problem, ScriptedServer, ServerOptions
from workers.llm.scripted.options import Latency
from workers.llm.scripted.policy import PolicyOptions
from workers.settings import WorkerSettings
from workers.worker import serve as serve_stage

RUN = "gate"
NO_TOOLS = {"math": {"options": {"tools": False}}}
"""The requests of the original cannot say it; then no sandbox is needed."""
Json = dict[str, Any]  # Any: answers are trees that a test looks into


@dataclass
class Answer:
    """What came back."""

    status: int
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict)


class Client:
    """Speaks JSON with a gateway."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def call(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        async with self.session.request(method, self.url + path, json=body, **more) as response:
            raw = await response.read()
            return Answer(response.status, cast(Json, orjson.loads(raw)) if raw else {}, response.headers)

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: object = None, **more: Any) -> Answer:
        return await self.call("POST", path, body, **more)


@dataclass
class Service:
    """One gateway process, as far as a test in the same process can have one."""

    client: Client
    listening: Listening
    shutdown: Shutdown
    task: asyncio.Task[int]

    @property
    def url(self) -> str:
        return self.listening.url

    async def code(self) -> int:
        """Its exit code, when it has left."""
        return await asyncio.wait_for(self.task, 20)


async def read_text(service: Service, path: str) -> str:
    """An answer that is no JSON."""
    async with service.client.session.get(service.url + path) as response:
        assert response.status == 200
        return await response.text()


async def raw(service: Service, *parts: bytes, until_closed: bool = False) -> bytes:
    """Sends bytes as they are; the beginning of what comes back, or all of it until the gateway closes."""
    where = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(-1 if until_closed else 4096), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def code_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


async def next_event(content: aiohttp.StreamReader) -> tuple[str, str, Json]:
    """The next event of a stream: id, kind, data. Comments are passed over."""
    fields: dict[str, str] = {}
    while raw := await content.readline():
        line = raw.decode().rstrip("\n")
        if not line and "data" in fields:
            return fields["id"], fields["event"], orjson.loads(fields["data"])
        name, _, value = line.partition(": ")
        if name:
            fields[name] = value
    raise AssertionError("the stream ended before the next event")


@asynccontextmanager
async def gateway(queue: QueueSettings, folder: Path, **settings: object) -> AsyncIterator[Service]:
    """A gateway that listens on a free port; it is told to leave at the end of the block."""
    requests_file = folder / "requests.json"
    requests_file.write_bytes(orjson.dumps(NO_TOOLS))
    usual = {"run": RUN, "port": 0, "grace_s": 5.0, "requests_file": requests_file, "timeout_s": 20.0}
    fields: dict[str, object] = {**usual, **settings}
    shutdown = Shutdown()
    announced: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(GatewaySettings.model_validate(fields), queue, shutdown, announce=announced.set_result), name="gateway"
    )
    try:
        await asyncio.wait((task, announced), return_when=asyncio.FIRST_COMPLETED)
        listening = announced.result() if announced.done() else None
        if listening is None:
            task.result()
        assert listening is not None
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            try:
                yield Service(Client(listening.url, session), listening, shutdown, task)
            finally:
                shutdown.stop.set()
                shutdown.hurry.set()
                await asyncio.wait((task,), timeout=20)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def workers(queue: QueueSettings, folder: Path, *, slots: int = 16, stages: tuple[Stage, ...] = tuple(Stage)) -> AsyncIterator[None]:
    """Real workers of all stages, while the block runs."""
    async with AsyncExitStack() as stack:
        tasks = []
        for stage in stages:
            settings = WorkerSettings(stage=stage, node="n1", slots=slots, grace_s=0.0, adaptive=False, scratch_dir=folder / "scratch")
            tasks.append(asyncio.create_task(serve_stage(queue, settings, Shutdown()), name=f"{stage}-worker"))
        stack.push_async_callback(_end, tasks)
        yield


async def _end(tasks: list[asyncio.Task[int]]) -> None:
    alive = [task for task in tasks if not task.done()]
    for task in alive:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(alive) == len(tasks), "a worker ended by itself"


@asynccontextmanager
async def model(folder: Path, *, per_token_s: float = 0.0, name: str = "model.sock") -> AsyncIterator[ScriptedServer]:
    """A scripted model server that solves what `question` asks."""
    problems = [Problem(question=question(number), answer=str(number + number)) for number in range(32)]
    policy = PolicyOptions(long_rate=0.0, mean_steps=2.0)
    options = ServerOptions(latency=Latency(per_token_s=per_token_s, sigma=0.0), policy=policy)
    async with ScriptedServer(options, problems, socket_path=folder / name) as server:
        yield server


def question(number: int) -> str:
    return f"What is {number} + {number}?"


def instance(number: int = 1, trajectory: int = 0, **more: object) -> Json:
    """A row as the original's trainers send it."""
    return {
        "data_source": "deepscaler",
        "instance_id": f"m{number}",
        "trajectory_id": trajectory,
        "prompt": [{"role": "user", "content": question(number)}],
        "reward_model": {"ground_truth": str(number + number), "style": "rule"},
        "extra_info": {"split": "train", "index": number},
        **more,
    }


PARAMS: Json = {
    "model": "hosted_vllm/Qwen/Qwen3-8B",
    "api_key": "dummy_key",
    "modify_params": False,
    "log_completions": False,
    "native_tool_calling": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "max_iterations": 6,
    "max_output_tokens": 256,
    "token_level_generation": True,
    "custom_tokenizer": "Qwen/Qwen3-8B",
    "max_model_len": 8192,
    "ensure_thinking_end_properly": False,
}
"""What the original's trainer sends with each request."""
