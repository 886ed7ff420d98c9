"""An evaluation from its rows to its numbers: the queue, the workers where none are configured, the servers, the file."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.child_processes import ChildEnded, ChildProcesses
from ops.evaluation.evaluate import Standing, evaluate
from ops.evaluation.fleet import workers_here
from ops.evaluation.numbers import Numbers, numbers_of
from ops.evaluation.plan import Plan
from ops.evaluation.results import ResultsFile
from ops.slow_start import SlowStart
from ops.tasks.model_server import ask_server
from ops.tasks.sandboxes import SandboxesOnDemand
from ops.tasks.scripts import scripted_problems, write_problems
from pipeline.embedded import open_redis
from pipeline.errors import InvalidRequest, RollstreamError
from pipeline.folders import Folders, make_private_folder
from pipeline.inference_pool import InferencePool, Server
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from trainer_client import connect
from workers.handlers.base import TaskHandler

POLL_S = 0.05


class WorkerEnded(RollstreamError):
    """A process that the evaluation started has ended; carries what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says beside the plan."""

    servers: tuple[str, ...]
    scripted: bool
    """Start a stand-in that knows the references."""
    with_workers: bool | None
    """Start workers here; None = when no Redis is configured."""
    slots: int | None
    out: Path
    ks: tuple[int, ...]
    source: str
    """Where the rows are from, for the file."""
    config: Path | None


async def run_evaluation(plan: Plan, handler: TaskHandler, asked: Asked, *, told: Callable[[Standing], None]) -> Numbers:
    """Does what is not in the file yet.

    Args:
        handler: of the task, for what a scripted model is to say.

    Raises:
        InvalidRequest: no server, or the file is of another evaluation.
        NotReachable
        ServiceNotStarted: workers are started here, and this node makes no sandboxes.
        WorkerEnded
        RollstreamError
    """
    header = {"task": plan.task, "digest": plan.digest, "n": plan.n, "run": plan.run, "threshold": plan.threshold, "data": asked.source}
    with ResultsFile(asked.out, {**header, "rows": plan.n_rows, "began": time.strftime("%Y-%m-%dT%H:%M:%S%z")}) as results:
        if len(results.rows) < plan.n_rows:
            await _through_the_pipeline(plan, handler, asked, results, told)
        return numbers_of([*results.rows.values()], ks=asked.ks, rows_asked=plan.n_rows)


async def _through_the_pipeline(
    plan: Plan, handler: TaskHandler, asked: Asked, results: ResultsFile, told: Callable[[Standing], None]
) -> None:
    async with AsyncExitStack() as stack:
        settings = QueueSettings.load(asked.config)
        with_workers = asked.with_workers if asked.with_workers is not None else not settings.redis_url
        if not settings.redis_url:
            address = stack.enter_context(open_redis())
            settings = QueueSettings.load(asked.config, redis_url=address.url)
        children: ChildProcesses | None = None
        if with_workers:
            async with SandboxesOnDemand(
                asked.config
            ) as sandboxes:  # workers need them: what is wrong is said here, once, and not by three logs
                await sandboxes.probe()
            children = stack.enter_context(workers_here(plan.run, settings.redis_url, slots=asked.slots, config=asked.config))
            for server in asked.servers:
                await ask_server(server, plan.template.model)
        urls = list(asked.servers)
        if asked.scripted:
            assert children is not None, "the command line takes a scripted model with workers alone"
            urls.append(await _scripted(stack, plan, handler, children))
        client = command_client(settings)
        stack.push_async_callback(client.aclose)
        pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
        if urls:
            await pool.attach(plan.run, [Server(url, plan.template.model, shared=True) for url in urls])
        elif not (await pool.state(plan.run)).servers:
            raise InvalidRequest(f"run {plan.run} has no model server: name one with --server", field="server")
        run = await stack.enter_async_context(connect(settings, run=plan.run))
        await _unless_one_ends(children, evaluate(run, plan, results, told=told))
        if urls:
            await pool.detach(plan.run, urls)


async def _scripted(stack: AsyncExitStack, plan: Plan, handler: TaskHandler, children: ChildProcesses) -> str:
    """Starts a stand-in that knows the references of these rows; returns its address when it listens."""
    folders = Folders.from_environment()
    make_private_folder(folders.run)
    name = hashlib.blake2b(plan.run.encode(), digest_size=4).hexdigest()
    socket, problems = folders.run / f"{name}-llm", folders.run / f"{name}-problems.jsonl"
    for path in (socket, problems):
        stack.callback(path.unlink, missing_ok=True)
        path.unlink(missing_ok=True)  # of one that was killed
    rows = [row for batch in plan.batches for row in batch.rows]
    write_problems(problems, scripted_problems(handler, plan.template, rows))
    children.start("model", "workers.llm.scripted", "--socket", str(socket), "--problems", str(problems))
    start = SlowStart("processes of the evaluation", lambda line: print(line, file=sys.stderr))
    while not socket.exists():
        children.check()
        start.goes_on()
        await asyncio.sleep(POLL_S)
    return f"unix:{socket}"


async def _unless_one_ends(children: ChildProcesses | None, work: Coroutine[Any, Any, None]) -> None:
    """The work to its end; a process of ours that ends before it ends it, too.

    Raises:
        WorkerEnded
    """
    if children is None:
        await work
        return
    tasks = [asyncio.create_task(work, name="evaluation"), asyncio.create_task(children.watch(), name="children")]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[1].done():
            await tasks[1]
        await tasks[0]
    except ChildEnded as ended:
        raise WorkerEnded(f"{ended}\n{ended.tail}") from ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
