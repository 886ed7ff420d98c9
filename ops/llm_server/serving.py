"""`rollstream llm serve`: a vLLM server as a child process, from its start to its end.

    find vLLM -> build the command -> start it under a guard -> wait for its address -> sample one token -> label, attach, announce
    -> until a signal, the end of our parent, or its own end -> detach, end it

Invariants:
  1. Nothing of the server is left when this process has ended, however it ended: the guard holds the process group (`ops/group_guard.py`).
  2. The state file is there while the server serves, whole or not at all; so is its place among the servers of a run. It names this
     process, so that one left by a process that was killed is known as such.
  3. No key stands in a command line, a log or the state file.
  4. A server that does not start is explained by one sentence that says what to do, and the end of its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from ops.child_processes import Child, ChildProcesses, log_tail
from ops.llm_server.command_line import ServePlan, build_command
from ops.llm_server.failures import PORT_TAKEN, why_it_ended
from ops.llm_server.installation import VllmInstallation
from pipeline.engines import ModelError
from pipeline.errors import RollstreamError
from pipeline.folders import make_folder
from pipeline.process import Shutdown
from workers.llm import Caps, connect_backend

PORT_TRIES = 4
"""A port that was free can be taken before the server has it; then another one is tried."""
FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 0.5
KILL_MARGIN_S = 3.0
"""After the guard's own grace period: it kills, reaps, and ends."""
Say = Callable[[str], None]

_MILESTONES: tuple[tuple[str, str], ...] = (
    (r"Resolved architecture: (\w+)", r"reading the model: \1"),
    (r"Initializing a V1 LLM engine", "starting the engine"),
    (r"Starting to load model", "loading weights"),
    (r"checkpoint shards: +(\d+)% Completed", r"loading weights: \1 %"),
    (r"(?:Loading weights|Model loading) took", "weights loaded"),
    (r"Compiling a graph|Dynamo bytecode transform|torch\.compile takes", "compiling"),
    (r"Capturing CUDA graph", "capturing CUDA graphs"),
    (r"KV cache size: ([\d,]+) tokens", r"cache for \1 tokens made"),
    (r"Starting vLLM (?:API )?server", "opening the address"),
)


class ServerDidNotStart(RollstreamError):
    """The server ended, or did not answer in time; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """How a server is kept, beside what it serves."""

    port: int
    """0: a free one."""
    logs: Path
    """Folder for its log."""
    state_file: Path | None
    """Where its address is told; None: `<port>.json` in the folder beside the logs."""
    start_timeout_s: float
    grace_s: float
    label: str = ""
    """Label of its weights, set before it is announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that serves."""

    url: str
    model: str
    caps: Caps
    log: Path
    state_file: Path
    took_s: float


async def serve(
    plan: ServePlan,
    vllm: VllmInstallation,
    hosting: Hosting,
    *,
    say: Say,
    attached: Callable[[Served], contextlib.AbstractAsyncContextManager[object]],
    announce: Callable[[Served], None],
) -> int:
    """Serves until SIGTERM, SIGINT or the end of our parent; answers the exit code.

    Args:
        say: told what goes on, for a person.
        attached: a context that is entered while the server serves: its place in a run.
        announce: told once, when it serves.

    Raises:
        ServerDidNotStart: with the reason.
        InvalidRequest: the model is none, or this version cannot serve it so.
    """
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    stop = asyncio.create_task(shutdown.stop.wait(), name="stop")
    try:
        async with _running(plan, vllm, hosting, say=say, stop=stop) as (child, served):
            if served is None:
                return 0
            async with attached(served):
                _write_state(served, vllm)
                try:
                    announce(served)
                    ended = asyncio.create_task(asyncio.to_thread(child.process.wait), name="server")
                    await asyncio.wait((stop, ended), return_when=asyncio.FIRST_COMPLETED)
                    ended.cancel()
                finally:
                    _remove_state(served.state_file)
            if child.exit_code is not None:
                say(f"the server is gone: {why_it_ended(log_tail(served.log), child.exit_code)}\n{log_tail(served.log)}")
                return 1
            say("ending the server")
            return 0
    finally:
        stop.cancel()


@contextlib.asynccontextmanager
async def _running(
    plan: ServePlan, vllm: VllmInstallation, hosting: Hosting, *, say: Say, stop: asyncio.Task[object]
) -> AsyncIterator[tuple[Child, Served | None]]:
    """The server, answering; None when it was told to stop before it did. Ended on the way out."""
    make_folder(hosting.logs)
    with ChildProcesses(hosting.logs, {}) as children:
        try:
            child, served = await _start(children, plan, vllm, hosting, say=say, stop=stop)
            yield child, served
        finally:
            await asyncio.to_thread(children.stop_all, grace_s=hosting.grace_s + KILL_MARGIN_S)


async def _start(
    children: ChildProcesses, plan: ServePlan, vllm: VllmInstallation, hosting: Hosting, *, say: Say, stop: asyncio.Task[object]
) -> tuple[Child, Served | None]:
    for left in reversed(range(PORT_TRIES if hosting.port == 0 else 1)):
        port = take_port(plan.host, hosting.port)
        command = build_command(plan, vllm, port=port)
        name = f"vllm-{port}"
        (hosting.logs / f"{name}.log").unlink(missing_ok=True)  # a reason is read off this start, not off an earlier one
        say(f"vLLM {vllm.version} with {plan.model} on {'the CPU' if plan.cpu else vllm.device or 'no device'}, port {port}")
        if command.left_out:
            say(f"  this version does not know {', '.join(command.left_out)}: left out")
        guard = [sys.executable, "-P", "-m", "ops.group_guard", str(hosting.grace_s), *command.arguments]
        child = children.start_command(name, guard, environment=command.environment)
        try:
            return child, await _until_serving(child, plan, hosting, port=port, say=say, stop=stop)
        except ServerDidNotStart as failure:
            if PORT_TAKEN not in str(failure):
                raise
            if not left:
                raise ServerDidNotStart(f"port {port} is taken: --port 0 takes a free one, or name another") from failure
            say(f"  port {port} was taken meanwhile: another one")
    raise AssertionError("the last try returns or raises")


async def _until_serving(
    child: Child, plan: ServePlan, hosting: Hosting, *, port: int, say: Say, stop: asyncio.Task[object]
) -> Served | None:
    """The server once it has sampled a token; None when we are told to stop before."""
    url = f"http://{_reachable(plan.host)}:{port}"
    progress = Progress(child.log, say, started_s=child.started_s)
    ended = asyncio.create_task(asyncio.to_thread(child.process.wait), name="server")
    try:
        return await _answering(child, ended, plan, hosting, url=url, progress=progress, stop=stop)
    finally:
        ended.cancel()


async def _answering(
    child: Child,
    ended: asyncio.Task[int],
    plan: ServePlan,
    hosting: Hosting,
    *,
    url: str,
    progress: Progress,
    stop: asyncio.Task[object],
) -> Served | None:
    pause_s = FIRST_LOOK_S
    async with connect_backend(url, model=plan.served_name, api_key=plan.api_key) as client:
        while True:
            look = asyncio.create_task(client.control.health(), name="look")
            # whoever has the address in its place may not answer at all
            await asyncio.wait((look, ended, stop), return_when=asyncio.FIRST_COMPLETED)
            progress.look()
            if not look.done():
                look.cancel()
                await asyncio.gather(look, return_exceptions=True)
            if child.exit_code is not None:
                raise ServerDidNotStart(_explained(child, hosting))
            if stop.done():
                return None
            if look.result().alive:
                break
            if time.monotonic() - child.started_s > hosting.start_timeout_s:
                raise ServerDidNotStart(f"no answer within {hosting.start_timeout_s:g} s (start_timeout_s); {_told(child)}")
            await asyncio.wait((stop, ended), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            pause_s = min(LONGEST_LOOK_S, pause_s * 1.5)
        progress.look()
        progress.say("first token")  # takes seconds: what is compiled or loaded late is so before anybody counts on it
        try:
            caps = await _or_stop(client.probe(), stop)
            if caps is None:
                return None
            if hosting.label:
                await client.control.set_version(hosting.label)
        except ModelError as error:
            raise ServerDidNotStart(f"it answers, but not as it should: {error}\n{_told(child)}") from error
    state_file = hosting.state_file or hosting.logs.parent / f"{url.rpartition(':')[2]}.json"
    return Served(url=url, model=caps.model, caps=caps, log=child.log, state_file=state_file, took_s=time.monotonic() - child.started_s)


async def _or_stop(call: Awaitable[Caps], stop: asyncio.Task[object]) -> Caps | None:
    """The answer; None when we are told to stop before it is there."""
    asked = asyncio.ensure_future(call)
    await asyncio.wait((asked, stop), return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        return asked.result()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    return None


class Progress:
    """Milestones of a start, read off the server's log as it grows.

    Args:
        started_s: by the monotonic clock.
    """

    def __init__(self, log: Path, say: Say, *, started_s: float) -> None:
        self._log = log
        self._say = say
        self._started_s = started_s
        self._read = 0
        self._last = ""

    def look(self) -> None:
        """Tell the newest milestone that has come since the last look."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            if found := milestone(new.decode("utf-8", "replace")):
                self.say(found)

    def say(self, text: str) -> None:
        """Tell it, once, with the seconds since the start."""
        if text != self._last:
            self._last = text
            self._say(f"  {time.monotonic() - self._started_s:4.0f} s  {text}")


def milestone(log: str) -> str:
    """The last milestone in a piece of a log; empty when there is none."""
    found: tuple[int, str] = (-1, "")
    for pattern, text in _MILESTONES:
        for match in re.finditer(pattern, log):
            if match.start() > found[0]:
                found = (match.start(), match.expand(text))
    return found[1]


def take_port(host: str, port: int) -> int:
    """The port, if it is free now; with 0 one that is.

    Raises:
        ServerDidNotStart: somebody listens there, who would be taken for the server.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended a moment ago do no harm
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ServerDidNotStart(f"port {port} is taken: --port 0 takes a free one, or name another ({error})") from error
        return int(sock.getsockname()[1])


def _reachable(host: str) -> str:
    """Where this machine reaches a server that listens there."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{own}]" if ":" in own else own


def _explained(child: Child, hosting: Hosting) -> str:
    return f"{why_it_ended(child.log.read_text(encoding='utf-8', errors='replace'), child.exit_code)}\n{_told(child)}"


def _told(child: Child) -> str:
    return f"the end of its log, {child.log}:\n{log_tail(child.log)}"


def _write_state(served: Served, vllm: VllmInstallation) -> None:
    content = {
        "url": served.url,
        "model": served.model,
        "max_model_len": served.caps.max_model_len,
        "logprobs_mode": served.caps.logprobs_mode,
        "vllm": vllm.version,
        "pid": os.getpid(),
        "machine": socket.gethostname(),
        "log": str(served.log),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    make_folder(served.state_file.parent)
    draft = served.state_file.with_suffix(f".{os.getpid()}")
    draft.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    draft.replace(served.state_file)


def _remove_state(path: Path) -> None:
    """Only our own: another server may have written its address over ours."""
    with contextlib.suppress(FileNotFoundError, orjson.JSONDecodeError, KeyError):
        content = orjson.loads(path.read_bytes())
        if (content["pid"], content["machine"]) == (os.getpid(), socket.gethostname()):
            path.unlink()
