"""A trainer's steps through a failover, with scripts that wait for replicas: every step comes, full, of prompts that no other step has."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest

from pipeline.messages import Grade
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import ServerKind, wait_until
from tests.integration.redis_servers.patient_crew import PATIENCE_S
from tests.integration.stages.fleet import TASK, Fleet, Play
from tests.integration.trainer_client.rows import member_of, rows
from tests.redis_sets import SentinelSet
from trainer_client import StepRequest, connect
from workers.handlers.base import EvalContext

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(180)]
STEPS = 5
DIES_IN = 3
SPEC = StepRequest(task=TASK, groups=2, n=2, ahead=1)


async def is_half_right(context: EvalContext) -> Grade:
    """Every group is informative."""
    return Grade(reward=float(member_of(context.spec.job) % 2), grader="play/1")


async def test_steps_go_on_through_a_failover(server_kind: ServerKind, tmp_path: Path) -> None:
    """The old master comes back as a replica: until then the new one has none, and nobody is told that anything is done."""
    with ExitStack() as stack:
        watched = SentinelSet(server_kind, stack)
        settings = QueueSettings(redis_url=watched.url, wait_replicas=1, lease_s=3.0, retry_backoff_s=0.02)
        stop = asyncio.Event()
        async with aclosing(command_client(settings)) as client:
            fleet = Fleet(settings, client, tmp_path)
            fleet.start(play=Play(on_evaluate=is_half_right))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(Supervisor(settings, name="s1", period_s=0.2).run(stop), name="supervisor")
                async with connect(settings, run="run1") as run:
                    run.feed(rows(60), shuffle_seed=1)
                    prompts: list[str] = []
                    async for step in run.steps(SPEC, start=1, count=STEPS, timeout_s=PATIENCE_S):
                        prompts += [group.prompt_id for group in step.groups]
                        if step.index == DIES_IN:
                            watched.master.kill()
                            watched.promote()
                            await wait_until(lambda: watched.leads_to(watched.replica), "the replica is promoted", timeout_s=PATIENCE_S)
                            watched.master.start()
                        await step.ack()
                stop.set()
            await fleet.leave()
    assert len(prompts) == len(set(prompts)) == SPEC.groups * STEPS
