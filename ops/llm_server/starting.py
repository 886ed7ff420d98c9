"""How a server of `rollstream llm serve` comes up: until it has sampled a token, or it is known why it does not.

    a free port -> the command, under a guard -> its address answers -> keys are tried -> one token -> label

Invariants:
  1. A server that does not start is explained by the end of its log, and one sentence that says what to do.
  2. Where a key is to guard every route, it is tried without one before anybody is told of the server; one that answers is ended.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from ops.child_processes import Child, ChildProcesses, log_tail
from ops.llm_server.command_line import ServePlan, build_command
from ops.llm_server.failures import PORT_TAKEN, known_reason, why_it_ended
from ops.llm_server.installation import VllmInstallation
from ops.llm_server.progress import Progress, Say
from pipeline.engines import ModelError
from pipeline.engines.errors import Refused, Retryable
from pipeline.engines.exchange import Exchange
from pipeline.errors import RollstreamError
from workers.llm import Caps, connect_backend

PORT_TRIES = 4
"""A port that was free can be taken before the server has it; then another one is tried."""
FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 0.5


class ServerDidNotStart(RollstreamError):
    """The server ended, or did not answer in time; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """How a server is kept, beside what it serves."""

    port: int
    """0: a free one."""
    logs: Path
    """Folder for its log."""
    states: Path
    """Folder where addresses of servers are told, in `<port>.json`."""
    state_file: Path | None
    """Where this one's is told instead."""
    start_timeout_s: float
    grace_s: float
    drain_s: float = 0.0
    """Longest wait for its jobs when it is told to end."""
    run: str = ""
    """That it serves; empty = none."""
    label: str = ""
    """Label of its weights, set before it is announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that serves."""

    url: str
    """By which others reach it."""
    own_url: str
    """By which this machine does."""
    model: str
    caps: Caps
    log: Path
    state_file: Path
    took_s: float


async def start_server(
    children: ChildProcesses, plan: ServePlan, vllm: VllmInstallation, hosting: Hosting, *, say: Say, stop: asyncio.Task[object]
) -> tuple[Child, Served | None]:
    """Starts it, and waits until it serves; None when we are told to stop before it does.

    Args:
        stop: ends when we are told to stop.

    Raises:
        ServerDidNotStart: with the reason.
    """
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
            is_guarded = plan.guards_all(vllm)
            return child, await _until_serving(child, plan, hosting, port=port, is_guarded=is_guarded, say=say, stop=stop)
        except ServerDidNotStart as failure:
            if PORT_TAKEN not in str(failure):
                raise
            if not left:
                raise ServerDidNotStart(f"port {port} is taken: --port 0 takes a free one, or name another") from failure
            say(f"  port {port} was taken meanwhile: another one")
    raise AssertionError("the last try returns or raises")


async def _until_serving(
    child: Child, plan: ServePlan, hosting: Hosting, *, port: int, is_guarded: bool, say: Say, stop: asyncio.Task[object]
) -> Served | None:
    """The server once it has sampled a token; None when we are told to stop before."""
    progress = Progress(child.log, say, started_s=child.started_s)
    ended = asyncio.create_task(asyncio.to_thread(child.process.wait), name="server")
    try:
        return await _answering(child, ended, plan, hosting, port=port, is_guarded=is_guarded, progress=progress, stop=stop)
    finally:
        ended.cancel()


async def _answering(
    child: Child,
    ended: asyncio.Task[int],
    plan: ServePlan,
    hosting: Hosting,
    *,
    port: int,
    is_guarded: bool,
    progress: Progress,
    stop: asyncio.Task[object],
) -> Served | None:
    url = f"http://{_reachable(plan.host)}:{port}"
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
                raise ServerDidNotStart(_explained(child))
            if stop.done():
                return None
            if look.result().alive:
                break
            if time.monotonic() - child.started_s > hosting.start_timeout_s:
                raise ServerDidNotStart(_explained(child, f"no answer within {hosting.start_timeout_s:g} s (start_timeout_s)"))
            await asyncio.wait((stop, ended), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            pause_s = min(LONGEST_LOOK_S, pause_s * 1.5)
        progress.look()
        if is_guarded:
            await _refuse_open_routes(url, child)
        progress.say("first token")  # takes seconds: what is compiled or loaded late is so before anybody counts on it
        try:
            until_s = child.started_s + hosting.start_timeout_s
            caps = await _or_stop(first_token(client.probe, lambda: time.monotonic() > until_s), stop)
            if caps is None:
                return None
            if hosting.label:
                await client.control.set_version(hosting.label)
        except ModelError as error:
            is_broken = isinstance(error, Retryable) and error.reason == "engine_failed"
            why = known_reason(_whole_log(child)) if is_broken else ""
            raise ServerDidNotStart(_explained(child, why or f"it answers, but not as it should: {error}")) from error
    return Served(
        url=f"http://{_told(plan.host)}:{port}",
        own_url=url,
        model=caps.model,
        caps=caps,
        log=child.log,
        state_file=hosting.state_file or hosting.states / f"{port}.json",
        took_s=time.monotonic() - child.started_s,
    )


async def _refuse_open_routes(url: str, child: Child) -> None:
    """A server that does not load the guard it was given would be open to everybody who reaches it.

    Raises:
        ServerDidNotStart: it answers without a key, or not at all.
    """
    async with Exchange(url) as stranger:
        try:
            answer: object = await stranger.get("/is_paused", parse=False)
        except Refused as refusal:
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                return
            answer = refusal
        except ModelError as error:
            raise ServerDidNotStart(_explained(child, f"it answers, but not as it should: {error}")) from error
    raise ServerDidNotStart(
        f"it answers without its key ({answer!s:.80}), so it does not load the guard (--middleware): without a key it may serve on loopback"
    )


async def first_token(probe: Callable[[], Awaitable[Caps]], is_late: Callable[[], bool]) -> Caps:
    """What a server can do, once it has sampled a token. The first call may take longer than a client waits: kernels are compiled then.

    Args:
        probe: asks for a token.
        is_late: whether the start has taken too long.

    Raises:
        ModelError: no token came.
    """
    while True:
        try:
            return await probe()
        except Retryable as error:
            if error.reason != "timeout" or is_late():
                raise


async def _or_stop(call: Awaitable[Caps], stop: asyncio.Task[object]) -> Caps | None:
    """The answer; None when we are told to stop before it is there."""
    asked = asyncio.ensure_future(call)
    await asyncio.wait((asked, stop), return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        return asked.result()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    return None


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


def _told(host: str) -> str:
    """Where others reach it: by the machine's name when it listens on every address."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else _reachable(host)


def _explained(child: Child, why: str = "") -> str:
    """What came last in its log and, as the last line, why it did not start: what a terminal and a launcher show of it."""
    why = why or why_it_ended(_whole_log(child), child.exit_code)
    return f"the end of its log, {child.log}:\n{log_tail(child.log)}\nthe server did not start: {why}"


def _whole_log(child: Child) -> str:
    return child.log.read_text(encoding="utf-8", errors="replace")
