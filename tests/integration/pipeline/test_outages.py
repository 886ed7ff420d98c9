"""Redis is away, or answers nobody: what is finished is held in its slot and settles on return; nobody starts anything without contact
for two leases; an outage costs no attempt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.attempts import End, JobControl
from pipeline.errors import LeaseLost
from pipeline.messages import Stage
from pipeline.redis_client import ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from tests.integration.pipeline.crew import DONE, Crew, HeldWork, ends, passes

MakeServer = Callable[..., PrivateServer]
pytestmark = pytest.mark.one_server


async def test_what_is_finished_while_redis_is_away_is_held_and_settles_on_return(crew: Crew, redis_server: PrivateServer) -> None:
    """Its slots bound what is held: a worker that went on claiming and working would fill its memory."""
    crew.settings = crew.settings.model_copy(update={"lease_s": 30.0})
    await crew.add(8)
    work = HeldWork()
    with LossyProxy(redis_server.socket) as proxy:
        member = crew.start(Stage.INIT, work, slots=3, url=proxy.url)
        await wait_until(lambda: len(work.running) == 3, "its slots are full")

        proxy.begin_outage()
        work.may_end.set()
        await wait_until(lambda: not work.running, "all three are finished")
        assert await crew.results() == []
        assert len(work.begun) == 3
        proxy.heal()

        results = await crew.results(8, timeout_s=20)
        assert {(record["out"], record["att"]) for record in results} == {("ok", "1")}
        assert await crew.audit.all_ended("run1", crew.units) == []
        await member.stop(hurry=True)


async def test_a_disk_of_redis_that_refuses_writes_is_an_outage_like_any_other(make_server: MakeServer, crew: Crew) -> None:
    """MISCONF comes as an error of each command while the connection stands. It is not the fault of any job."""
    server = make_server(extra=(("save", "3600 100000"),))
    settings = crew.settings.model_copy(update={"redis_url": server.url, "lease_s": 30.0})
    client = command_client(settings)
    other = Crew(settings, client)
    await other.connect()
    try:
        await other.add(4)
        work = HeldWork()
        member = other.start(Stage.INIT, work, slots=2)
        await wait_until(lambda: len(work.running) == 2, "its slots are full")

        await refuse_writes(other, Path(server.folder))
        work.may_end.set()
        await wait_until(lambda: not work.running, "both are finished")
        assert await other.results() == []
        assert not member.task.done()
        await ask(client, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no")

        results = await other.results(4, timeout_s=20)
        assert {(record["out"], record["att"]) for record in results} == {("ok", "1")}
        assert {(await other.job(record["job"]))["failed"] for record in results} == {"0"}
    finally:
        await other.leave()
        await client.aclose()


async def refuse_writes(crew: Crew, folder: Path) -> None:
    """Lets a save fail, after which the server takes no writes: what it does when its disk is full."""
    (folder / "dump.rdb").mkdir()  # a snapshot cannot take the place of a folder
    (folder / "dump.rdb" / "in-the-way").touch()
    await ask(crew.client, "BGSAVE")

    async def refuses() -> bool:
        return bool((await ask(crew.client, "INFO", "persistence"))["rdb_last_bgsave_status"] == "err")

    await wait_until(refuses, "the server refuses writes")


@pytest.mark.slow
async def test_without_contact_for_two_leases_nothing_starts_and_another_does_the_work(crew: Crew, redis_server: PrivateServer) -> None:
    """The worker lives, its connections do not. Its job is another's by the time it could go on, and what it makes of it is nowhere."""
    (job,) = await crew.add(1)
    controls: list[JobControl] = []
    came: list[str] = []
    may_look = asyncio.Event()

    async def cut_off(control: JobControl) -> End:
        controls.append(control)
        control.progress(600)
        await may_look.wait()
        try:
            control.gate()
        except LeaseLost:
            came.append("refused")
            raise
        return DONE

    with LossyProxy(redis_server.socket) as proxy:
        member = crew.start(Stage.INIT, cut_off, url=proxy.url, node="cut")
        await wait_until(lambda: controls, "it runs")
        crew.start(Stage.INIT, ends, node="other")  # whose janitor finds the lease run out
        proxy.begin_outage()

        (record,) = await crew.results(1, timeout_s=20)
        assert (record["out"], record["att"]) == ("ok", "2")
        (control,) = controls
        await wait_until(lambda: refuses(control), "two leases have passed")
        may_look.set()
        await wait_until(lambda: came, "its gate refuses")
        proxy.heal()

        await crew.has_name(member)
        assert len(await crew.results()) == 1
        assert (await crew.job(job))["lost"] == "1"
        await member.stop(hurry=True)


def refuses(control: JobControl) -> bool:
    try:
        control.gate()
    except LeaseLost:
        return True
    return False


@pytest.mark.slow
async def test_the_output_of_a_worker_that_was_cut_off_is_fenced(crew: Crew, redis_server: PrivateServer) -> None:
    """It finishes, and says so when Redis is back: too late, the job has another attempt."""
    (job,) = await crew.add(1)
    first, second = HeldWork(), HeldWork()
    with LossyProxy(redis_server.socket) as proxy:
        member = crew.start(Stage.INIT, first, url=proxy.url, node="cut")
        await wait_until(lambda: first.running, "it runs")
        proxy.begin_outage()
        crew.start(Stage.INIT, second, node="other", slots=1)
        await wait_until(lambda: second.running, "another runs it", timeout_s=20)
        first.may_end.set()
        await wait_until(lambda: not first.running, "the first is finished")
        proxy.heal()
        await crew.has_name(member)
        await crew.add(1, start=1)
        await crew.results(1)  # the first serves again: what it had to say was said
        assert (await crew.job(job))["st"] == "running"

        second.may_end.set()

        results = {record["job"]: record for record in await crew.results(2)}
        assert (results[job]["out"], results[job]["att"]) == ("ok", "2")
        await member.stop(hurry=True)


@pytest.mark.slow
async def test_an_outage_of_many_leases_costs_no_attempt(crew: Crew, redis_server: PrivateServer) -> None:
    """All are cut off at once, janitors too. When Redis is back every lease looks run out, and none is judged until its owner had time
    to renew."""
    jobs = await crew.add(4)
    work = HeldWork()
    with LossyProxy(redis_server.socket) as proxy:
        members = [crew.start(Stage.INIT, work, url=proxy.url, node=f"n{number}", slots=2) for number in range(2)]
        await wait_until(lambda: len(work.running) == 4, "all run")
        proxy.begin_outage()
        controls = list(work.running.values())
        await wait_until(lambda: all(refuses(control) for control in controls), "two leases have passed")
        proxy.heal()
        for member in members:
            await crew.has_name(member)
        await wait_until(lambda: not any(refuses(control) for control in controls), "they are in contact again")
        work.may_end.set()

        results = await crew.results(4, timeout_s=20)
        assert {(record["out"], record["att"]) for record in results} == {("ok", "1")}
        assert {(await crew.job(job))["lost"] for job in jobs} == {"0"}
        for member in members:
            await member.stop(hurry=True)


@pytest.mark.slow
async def test_a_worker_whose_loop_is_blocked_keeps_its_lease(crew: Crew) -> None:
    """A grader that computes on the event loop for two leases: the thread renews without it."""
    (job,) = await crew.add(1)

    async def blocks(control: JobControl) -> End:
        control.progress(60)
        until_s = time.monotonic() + 2.2 * crew.settings.lease_s
        while time.monotonic() < until_s:
            sum(range(10_000))
        return DONE

    crew.start(Stage.INIT, blocks)

    (record,) = await crew.results(1)
    assert (record["out"], record["att"], (await crew.job(job))["lost"]) == ("ok", "1", "0")


async def test_work_that_gives_no_sign_of_life_is_interrupted_and_frees_its_slot(crew: Crew) -> None:
    """Its lease was no longer renewed, so another took the job; but nobody told the work, which waited for ever in a slot of this
    worker."""
    (job,) = await crew.add(1)
    interrupted: list[int] = []

    async def hangs_once(control: JobControl) -> End:
        if control.held.attempt > 1:
            return DONE
        control.progress(0.5)
        try:
            await asyncio.Event().wait()
        finally:
            interrupted.append(control.held.attempt)
        return DONE

    crew.start(Stage.INIT, hangs_once, slots=1)

    (record,) = await crew.results(1)
    h = await crew.job(job)
    assert (record["out"], interrupted, h["failed"], h["lost"]) == ("ok", [1], "1", "0")
    assert "no sign of life" in h["err"]


@pytest.mark.slow
async def test_work_that_promises_again_and_again_is_left_alone(crew: Crew) -> None:
    await crew.add(1)

    async def slow(control: JobControl) -> End:
        until_s = time.monotonic() + 2.0 * crew.settings.lease_s
        while time.monotonic() < until_s:
            control.progress(0.9)
            await asyncio.sleep(0.1)
        return DONE

    crew.start(Stage.INIT, slow, slots=1)

    (record,) = await crew.results(1)
    assert (record["out"], record["att"]) == ("ok", "1")


@pytest.mark.slow
@pytest.mark.parametrize("stage", [Stage.INIT, Stage.RUN])
async def test_a_stream_that_is_deleted_under_the_workers_heals(make_server: MakeServer, quick: QueueSettings, stage: Stage) -> None:
    """`DEL` of a stage's stream takes its group, what waits and what is known of who holds what. The group is made again, by nobody in
    a hurry; what runs goes on; what waited is put back from the jobs' own hashes."""
    server = make_server()
    settings = quick.model_copy(update={"redis_url": server.url})
    client = command_client(settings)
    crew = Crew(settings, client)
    await crew.connect()
    try:
        work = HeldWork()
        crew.start_stages(but=[stage])
        for node in ("n1", "n2"):
            crew.start(stage, work, node=node, slots=4)
        jobs = await crew.add(40)
        await wait_until(lambda: len(work.running) == 8, "all slots of the stage work")
        reads_before = await reads(crew)
        started_s = time.monotonic()

        for _ in range(2):
            await ask(client, "DEL", crew.keys.stage_stream(stage))
        await crew.add(4, start=100)
        work.may_end.set()

        results = await crew.results(44, timeout_s=25)
        took_s = time.monotonic() - started_s
        assert {record["out"] for record in results} == {"ok"}
        assert len({record["job"] for record in results}) == 44
        assert {(await crew.job(job))["failed"] + (await crew.job(job))["lost"] for job in jobs} == {"00"}
        assert await crew.audit.all_ended("run1", crew.units) == []
        # five members read: blocked for a second each, or for the jobs that there are
        assert await reads(crew) - reads_before < 5 * took_s + 3 * 44 + 60
    finally:
        await crew.leave()
        await client.aclose()


async def reads(crew: Crew) -> int:
    return int((await ask(crew.client, "INFO", "commandstats"))["cmdstat_xreadgroup"]["calls"])


async def test_workers_survive_that_everything_is_deleted(make_server: MakeServer, quick: QueueSettings) -> None:
    """FLUSHALL: names, groups, jobs and runs are gone. What ran is told so, and a new run is served by the same workers."""
    server = make_server()
    settings = quick.model_copy(update={"redis_url": server.url})
    client = command_client(settings)
    crew = Crew(settings, client)
    await crew.connect()
    try:
        work = HeldWork()
        crew.start_stages(but=[Stage.RUN])
        crew.start(Stage.RUN, work)
        await crew.add(3)
        await wait_until(lambda: len(work.running) == 3, "all run")

        await ask(client, "FLUSHALL")
        await wait_until(lambda: len(work.interrupted) == 3, "what ran is interrupted: its jobs are gone")

        crew.units = []
        await crew.connect()
        await crew.add(3, start=10)
        await wait_until(lambda: len(work.begun) == 6, "new jobs run", timeout_s=20)
        work.may_end.set()
        results = await crew.results(3, timeout_s=20)
        assert {record["out"] for record in results} == {"ok"}
        assert not any(member.task.done() for member in crew.members)
        assert await crew.audit.all_ended("run1", crew.units) == []
    finally:
        await crew.leave()
        await client.aclose()


async def test_a_server_that_is_killed_and_comes_back_empty_is_served_again(make_server: MakeServer, quick: QueueSettings) -> None:
    """Without an append-only file. The workers' connections break, their scripts are unknown, and nothing is there."""
    server = make_server()
    settings = quick.model_copy(update={"redis_url": server.url})
    client = command_client(settings)
    crew = Crew(settings, client)
    await crew.connect()
    try:
        crew.start_stages(passes)
        await crew.add(3)
        await crew.results(3)

        server.restart()

        crew.units = []
        await crew.connect()
        await crew.add(3, start=10)
        assert {record["out"] for record in await crew.results(3, timeout_s=20)} == {"ok"}
        assert not any(member.task.done() for member in crew.members)
    finally:
        await crew.leave()
        await client.aclose()
