"""Behind Sentinels: a failover is an outage that ends by itself, and what it costs is known (ADR 29)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing

import pytest
import redis

from ops.redis.prompt import cli
from pipeline.errors import BrokerUnreachable
from pipeline.keys import Keys
from pipeline.redis_client import ask, command_client, thread_client
from pipeline.scripts import ThreadScriptRunner
from pipeline.settings import QueueSettings
from pipeline.testing import ServerKind, wait_until
from tests.integration.redis_servers.patient_crew import PatientCrew
from tests.redis_sets import MASTER, SentinelSet, free_ports

pytestmark = pytest.mark.one_server
JOBS = 60


@pytest.fixture
def watched(server_kind: ServerKind, servers: ExitStack) -> SentinelSet:
    return SentinelSet(server_kind, servers)


def quick(watched: SentinelSet, *, wait_replicas: int = 0) -> QueueSettings:
    """With a short lease and short pauses."""
    return QueueSettings(redis_url=watched.url, wait_replicas=wait_replicas, lease_s=5.0, retry_backoff_s=0.02, retry_backoff_max_s=0.2)


@pytest.fixture
async def crew(watched: SentinelSet) -> AsyncIterator[PatientCrew]:
    """A run behind the Sentinels, whose clients do not wait for the replica."""
    settings = quick(watched)
    async with aclosing(command_client(settings)) as client:
        crew = PatientCrew(settings, client)
        await crew.connect()
        yield crew
        await crew.leave()


@pytest.fixture
async def careful(watched: SentinelSet) -> AsyncIterator[PatientCrew]:
    """The same with `wait_replicas = 1`."""
    settings = quick(watched, wait_replicas=1)
    async with aclosing(command_client(settings)) as client:
        crew = PatientCrew(settings, client)
        await crew.connect()
        yield crew
        await crew.leave()


async def test_a_master_that_hands_over_while_jobs_run_costs_nothing(watched: SentinelSet, careful: PatientCrew) -> None:
    """Both live: connections to the old one are ended, or hear READONLY and UNBLOCKED. Nobody waits for a time to run out."""
    await careful.add(JOBS)
    careful.start_stages()
    await careful.results(JOBS // 4)
    watched.hand_over()
    await wait_until(lambda: watched.replica.is_master, "the replica is the master")

    results = await careful.results(JOBS)

    assert {record["out"] for record in results} == {"ok"}
    assert await careful.audit.all_ended("run1", careful.units) == []


async def test_every_kind_of_client_finds_the_new_master(watched: SentinelSet, crew: PatientCrew) -> None:
    with thread_client(crew.settings) as thread:
        run_in_thread = ThreadScriptRunner(thread, crew.keys)
        assert run_in_thread("touch_run", "run1", 1)
        watched.master.kill()
        watched.promote()

        async def answers() -> bool:
            try:
                await crew.scripts.run_script("touch_run", "run1", 1, tries=1)
                return bool(run_in_thread("touch_run", "run1", 1))
            except BrokerUnreachable:
                return False

        await wait_until(answers, "both reach the new master")
    assert (await ask(crew.client, "ROLE"))[0] == b"master"


async def test_without_waiting_the_audit_names_what_was_lost_and_sending_again_repairs_it(watched: SentinelSet, crew: PatientCrew) -> None:
    """The replica is cut off for a while: the window, as wide as the test wants it. What was accepted in it was never heard of."""
    kept = await crew.add(5)
    await wait_until(lambda: watched.is_level(), "the replica has it all")
    watched.cut_off()
    lost = await crew.add(5, start=5)
    watched.master.kill()
    watched.promote()
    await wait_until(lambda: watched.leads_to(watched.replica), "Sentinels name the replica")

    missing = await crew.audit.all_ended("run1", crew.units)
    assert sorted(line.split()[0] for line in missing if line.endswith(" is gone")) == sorted(lost)

    await crew.accept_again()
    crew.start_stages()
    results = await crew.results(10)
    assert sorted(record["job"] for record in results) == sorted(kept + lost)
    assert await crew.audit.all_ended("run1", crew.units) == []


async def test_a_sentinel_that_is_down_or_says_nonsense_is_passed_over(watched: SentinelSet) -> None:
    (closed,) = free_ports(1)
    no_sentinel = watched.master.port
    first, *_ = watched.sentinels
    url = f"redis+sentinel://127.0.0.1:{closed},127.0.0.1:{no_sentinel},127.0.0.1:{first}/{MASTER}"
    async with aclosing(command_client(QueueSettings(redis_url=url))) as client:
        assert (await ask(client, "ROLE"))[0] == b"master"


async def test_a_name_that_no_sentinel_knows_is_told_with_what_each_said(watched: SentinelSet) -> None:
    url = watched.url.replace(MASTER, "other")
    async with aclosing(command_client(QueueSettings(redis_url=url))) as client:
        with pytest.raises(BrokerUnreachable, match=r"no master 'other'.*knows no master of that name"):
            await ask(client, "PING")


async def test_a_server_that_is_a_replica_by_now_is_left(watched: SentinelSet, crew: PatientCrew) -> None:
    """A connection to a master that was demoted, and that nobody ended: the first write finds out, and the next one connects anew."""
    pool = crew.client
    await ask(pool, "PING")
    watched.master.tell("REPLICAOF", "127.0.0.1", watched.replica.port)  # no Sentinel did it, so none ends connections
    with pytest.raises(BrokerUnreachable):
        await ask(pool, "SET", Keys.of_shard("rs", 0).key("x"), "1", "EX", 60)

    watched.master.tell("REPLICAOF", "NO", "ONE")
    assert await ask(pool, "SET", Keys.of_shard("rs", 0).key("x"), "1", "EX", 60)


def test_a_thread_is_told_when_there_is_no_master() -> None:
    (port,) = free_ports(1)
    with thread_client(QueueSettings(redis_url=f"redis+sentinel://127.0.0.1:{port}/m")) as client, pytest.raises(redis.ConnectionError):
        client.ping()


@pytest.mark.parametrize("own", [True, False], ids=["own", "installed"])
def test_the_prompt_talks_to_the_master(watched: SentinelSet, capfd: pytest.CaptureFixture[str], own: bool) -> None:
    environ = {**os.environ, "ROLLSTREAM_REDIS_URL": watched.url}
    assert cli([*(["--own"] if own else []), "ROLE"], environ=environ) == 0
    assert capfd.readouterr().out.startswith("master")
