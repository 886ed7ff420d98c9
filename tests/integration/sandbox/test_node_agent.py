"""Which sandboxes the node agent ends, as Redis knows their jobs (promise 8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pipeline.cancel import CancelMessage
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, ManualWorker, PrivateServer, a_template, a_unit, wait_until
from workers.sandbox import Isolation, SandboxOwner, SandboxSpec
from workers.sandbox.local import LocalSandboxes, owners
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import served_here
from workers.stages.node_agent import AFTER_CANCEL_S, NodeAgent

SPEC = SandboxSpec(isolation=Isolation.NONE)


def jobs_below(folder: Path) -> set[str]:
    return {owner.job_id for owner in owners(folder)}


async def test_a_sandbox_made_while_the_agent_asks_stays(
    settings: QueueSettings, keys: Keys, scripts: Scripts, redis_server: PrivateServer, place: Path
) -> None:
    """The sweep listed the sandboxes, asked Redis for their jobs, and then removed all but the needed ones of those that stood there by
    then: one that INIT was just making went too. Each such job lost an attempt, and after some a group its member."""
    incarnation = await scripts.connect_run("run1", nonce="n", ttl_s=3600.0)
    units = [a_unit(prompt="over"), a_unit(prompt="new")]
    await scripts.accept("run1", incarnation, a_template(), "tpl1", b"template", units, max_waiting=10, window=10)
    held = {job.job: job for job in await ManualWorker(scripts, Stage.INIT).take()}
    over, new = (f"run1.{name}.0" for name in ("over", "new"))
    scratch = place / "scratch"
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        local = LocalSandboxes(ProcessBackend(), scratch_dir=scratch, run_dir=place / "run", node="here")
        async with served_here(local, place / "run") as provider:
            await (await provider.start(SPEC, SandboxOwner(job_id=over, attempt=1, boot_id="b"))).park()
            await ManualWorker(scripts, Stage.INIT).settle(held[over])
            trap = proxy.hold_reply(containing=keys.job(over).encode())
            asking = asyncio.create_task(NodeAgent(client, settings, provider).once(), name="agent")
            await trap.sprung()

            await (await provider.start(SPEC, SandboxOwner(job_id=new, attempt=1, boot_id="b"))).park()
            trap.release()

            assert await asking == 1
            assert jobs_below(scratch) == {new}
        await client.aclose()


async def test_a_cancel_heard_in_the_last_look_after_another_is_looked_after_as_well(
    settings: QueueSettings, keys: Keys, scripts: Scripts, redis_server: PrivateServer, place: Path
) -> None:
    """All cancels shared one row of looks. One that came while the last of them was at Redis was thrown away with those that had been
    looked after, and one that came shortly before it waited as long as they did: its sandboxes stayed until the next sweep of all."""
    incarnation = await scripts.connect_run("run1", nonce="n", ttl_s=3600.0)
    units = [a_unit(prompt="stays"), a_unit(prompt="late")]
    await scripts.accept("run1", incarnation, a_template(), "tpl1", b"template", units, max_waiting=10, window=10)
    held = {job.job: job for job in await ManualWorker(scripts, Stage.INIT).take()}
    stays, late = (f"run1.{name}.0" for name in ("stays", "late"))
    scratch = place / "scratch"
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings.model_copy(update={"redis_url": proxy.url, "lease_s": 3600.0}))
        local = LocalSandboxes(ProcessBackend(), scratch_dir=scratch, run_dir=place / "run", node="here")
        async with served_here(local, place / "run") as provider:
            for job in (stays, late):
                await (await provider.start(SPEC, SandboxOwner(job_id=job, attempt=1, boot_id="b"))).park()
            agent, stop = NodeAgent(client, settings.model_copy(update={"lease_s": 3600.0}), provider), asyncio.Event()
            trap = proxy.hold_reply(containing=keys.job(stays).encode())
            running = asyncio.create_task(agent.run(stop), name="agent")
            await trap.sprung()
            agent.hear(CancelMessage("job", "user", frozenset((stays,))))
            for _ in (0.0, *AFTER_CANCEL_S):
                again = proxy.hold_reply(containing=keys.job(stays).encode())
                trap.release()
                trap = again
                await trap.sprung()
            await ManualWorker(scripts, Stage.INIT).settle(held[late])

            agent.hear(CancelMessage("job", "user", frozenset((late,))))
            trap.release()

            await wait_until(lambda: jobs_below(scratch) == {stays}, "the sandbox of the job that was cancelled last is gone")
            stop.set()
            await running
        await client.aclose()


async def test_a_sandbox_that_a_stage_made_for_itself_stays_while_its_attempt_runs(
    settings: QueueSettings, scripts: Scripts, place: Path
) -> None:
    """Only INIT was thought to make sandboxes: one that EVAL had made, to grade in a clean one, was ended by the next look, and the job
    with it, again and again until its retries were used up."""
    incarnation = await scripts.connect_run("run1", nonce="n", ttl_s=3600.0)
    await scripts.accept("run1", incarnation, a_template(), "tpl1", b"template", [a_unit(prompt="job")], max_waiting=10, window=10)
    for stage in (Stage.INIT, Stage.RUN):
        (held,) = await ManualWorker(scripts, stage).take()
        await ManualWorker(scripts, stage).hand_off(held)
    (held,) = await ManualWorker(scripts, Stage.EVAL).take()
    client = command_client(settings)
    local = LocalSandboxes(ProcessBackend(), scratch_dir=place / "scratch", run_dir=place / "run", node="here")
    async with served_here(local, place / "run") as provider:
        agent = NodeAgent(client, settings, provider)
        async with await provider.start(SPEC, SandboxOwner(job_id=held.job, attempt=held.attempt, boot_id="b")):
            assert await agent.once() == 1
            assert jobs_below(place / "scratch") == {held.job}

            await ManualWorker(scripts, Stage.EVAL).settle(held)
            await agent.once()

            assert jobs_below(place / "scratch") == set()
    await client.aclose()
