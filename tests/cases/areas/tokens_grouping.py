"""Rollouts carried through the queue: which members each group closes with, whatever their prompts' tokens are."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import numpy as np

from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import Stage, StopReason, Trajectory
from pipeline.redis_client import ask, command_client
from pipeline.scripts import Scripts, Unit
from pipeline.settings import QueueSettings
from pipeline.testing import ManualWorker, QueueAudit, a_prompt, a_template
from pipeline.testing.servers import PrivateServer, found_servers
from workers.agent import TrajectoryRecorder

RUN = "case"


async def member_counts(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Members that each group closed with and whose record is theirs, by the group's id."""
    prompts: dict[str, list[list[int]]] = defaultdict(list)
    for rollout in rollouts:
        prompts[rollout["group_id"]].append(list(rollout["prompt_ids"]))
    async with AsyncExitStack() as stack:
        server = PrivateServer(found_servers()[0])
        await asyncio.to_thread(stack.enter_context, server)
        settings = QueueSettings(redis_url=server.url)
        client = await stack.enter_async_context(aclosing(command_client(settings)))
        scripts = Scripts(client, Keys.of_shard(settings.namespace, 0))
        return await _carried(scripts, prompts)


async def _carried(scripts: Scripts, prompts: Mapping[str, list[list[int]]]) -> dict[str, int]:
    units = {
        f"{RUN}.{name}": Unit(f"{RUN}.{name}", len(ids), name, 0, "1.0", codec.encode(a_prompt(name))) for name, ids in prompts.items()
    }
    incarnation = await scripts.connect_run(RUN, nonce="case", ttl_s=3600.0, weight=1.0, quota=0)
    await scripts.accept(
        RUN, incarnation, a_template(), "t", codec.encode(a_template()), list(units.values()), max_waiting=10**6, window=10**6
    )
    init, run, evaluation = (ManualWorker(scripts, stage) for stage in Stage)
    await init.hand_off(*await init.take())
    for held in await run.take():
        group, _, member = held.job.rpartition(".")
        await run.hand_off(held, body=codec.encode(_trajectory(prompts[group.removeprefix(f"{RUN}.")][int(member)])))
    graded = await evaluation.take()
    await evaluation.settle(*graded)
    counts: Counter[str] = Counter()
    audit = QueueAudit(scripts.run_script.client, scripts.keys)
    for held in graded:
        group, _, member = held.job.rpartition(".")
        body = await ask(scripts.run_script.client, "GET", scripts.keys.body(held.job, held.attempt - 1, Stage.RUN.value))
        (segment,) = codec.decode(Trajectory, body).segments
        is_closed = (await audit.hash(scripts.keys.group(group)))["st"] == "closed"
        is_member = int(member) in await audit.members(group)
        own = prompts[group.removeprefix(f"{RUN}.")][int(member)]
        counts[group.removeprefix(f"{RUN}.")] += is_closed and is_member and np.array_equal(segment.token_ids, own)
    return dict(counts)


def _trajectory(prompt_ids: Sequence[int]) -> Trajectory:
    recorder = TrajectoryRecorder()
    recorder.add_prompt(prompt_ids)
    return recorder.trajectory(StopReason.TOKENS)
