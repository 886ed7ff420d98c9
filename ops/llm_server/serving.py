"""`rollstream llm serve`: a vLLM server as a child process, from its start to its end.

    find vLLM -> build the command -> start it (`starting.py`) -> attach, announce -> until a signal, the end of our parent, or its own end
    -> drain, detach, end it

Invariants:
  1. Nothing of the server is left when this process has ended, however it ended: the guard holds the process group (`ops/group_guard.py`).
  2. The state file is there while the server serves, whole or not at all; so is its place among the servers of a run. It names this
     process, so that one left by a process that was killed is known as such.
  3. No key stands in a command line, a log or the state file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from ops.child_processes import Child, ChildProcesses, log_tail
from ops.llm_server.command_line import ServePlan
from ops.llm_server.failures import why_it_ended
from ops.llm_server.installation import VllmInstallation
from ops.llm_server.place import PlaceInRun
from ops.llm_server.progress import Say
from ops.llm_server.starting import Hosting, Served, start_server
from ops.llm_server.state_file import left_by_the_dead, remove_state, write_state
from pipeline.folders import make_folder
from pipeline.process import Shutdown, StoppedWhileWaiting
from workers.llm import connect_backend

KILL_MARGIN_S = 3.0
"""After the guard's own grace period: it kills, reaps, and ends."""


async def serve(
    plan: ServePlan,
    vllm: VllmInstallation,
    hosting: Hosting,
    *,
    say: Say,
    attached: Callable[[Served, Sequence[str], asyncio.Event], contextlib.AbstractAsyncContextManager[PlaceInRun | None]],
    announce: Callable[[Served], None],
) -> int:
    """Serves until SIGTERM, SIGINT or the end of our parent; answers the exit code.

    Args:
        say: told what goes on, for a person.
        attached: a context that is entered while the server serves: its place in a run. Given addresses of servers that died in this one's
            place, and what ends its waiting.
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
            gone = left_by_the_dead(served.state_file, hosting.run)
            async with attached(served, gone, shutdown.stop) as place:
                facts: dict[str, str | int] = {
                    "model": served.model,
                    "max_model_len": served.caps.max_model_len,
                    "logprobs_mode": served.caps.logprobs_mode,
                }
                write_state(served.state_file, url=served.url, run=hosting.run, **facts, vllm=vllm.version, log=str(served.log))
                try:
                    announce(served)
                    ended = asyncio.create_task(asyncio.to_thread(child.process.wait), name="server")
                    await asyncio.wait((stop, ended), return_when=asyncio.FIRST_COMPLETED)
                    if place is not None and child.exit_code is None:
                        await _drain(place, plan, served, hosting, ended, shutdown, say=say)
                    ended.cancel()
                finally:
                    remove_state(served.state_file)
            if child.exit_code is not None:
                say(f"{log_tail(served.log)}\nthe server is gone: {why_it_ended(log_tail(served.log), child.exit_code)}")
                return 1
            say("ending the server")
            return 0
    except StoppedWhileWaiting:
        return 0
    finally:
        stop.cancel()


async def _drain(
    place: PlaceInRun, plan: ServePlan, served: Served, hosting: Hosting, ended: asyncio.Task[int], shutdown: Shutdown, *, say: Say
) -> None:
    """Until its jobs are done or went elsewhere, at most `drain_s`; a second signal, and the end of the server, cut it short."""
    say(f"draining: no new jobs, at most {hosting.drain_s:g} s for those that it has")
    async with connect_backend(served.own_url, model=plan.served_name, api_key=plan.api_key) as client:

        async def is_busy() -> bool:
            look = await client.control.health()
            return look.alive and look.running + look.waiting > 0

        draining = asyncio.create_task(place.drain(hosting.drain_s, is_busy), name="drain")
        hurry = asyncio.create_task(shutdown.hurry.wait(), name="hurry")
        await asyncio.wait((draining, hurry, ended), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()
        await asyncio.gather(draining, hurry, return_exceptions=True)


@contextlib.asynccontextmanager
async def _running(
    plan: ServePlan, vllm: VllmInstallation, hosting: Hosting, *, say: Say, stop: asyncio.Task[object]
) -> AsyncIterator[tuple[Child, Served | None]]:
    """The server, answering; None when it was told to stop before it did. Ended on the way out."""
    make_folder(hosting.logs)
    with ChildProcesses(hosting.logs, {}) as children:
        try:
            child, served = await start_server(children, plan, vllm, hosting, say=say, stop=stop)
            yield child, served
        finally:
            await asyncio.to_thread(children.stop_all, grace_s=hosting.grace_s + KILL_MARGIN_S)
