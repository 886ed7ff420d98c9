"""`status`, `doctor` and `top` of servers that stand together: what is well is green, and what is lost is said with the next command."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli.app import app
from ops.doctor.examine import examine
from ops.doctor.finding import Finding, Grade
from ops.redis.acl import make_acl
from ops.redis.users import password_file
from ops.status.look import look_and_judge
from ops.status.set_up import read_set_up
from ops.status.set_up_troubles import of_set_up
from ops.status.verdict import Judgement, Verdict, command_line
from ops.status.view import as_lines
from pipeline.keys import Keys
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.testing import ServerKind, wait_until
from tests.integration.status.staging import Staged
from tests.redis_sets import MASTER, ClusterSet, SentinelSet

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(120)]
PATIENCE_S = 20.0


async def judged(settings: QueueSettings) -> Judgement:
    """With patience: the machine is shared."""
    return (await look_and_judge(settings, patience_s=PATIENCE_S))[0]


async def sees(settings: QueueSettings, cause: str) -> Judgement:
    """The verdict, once its first cause is this one: servers find each other's loss out in their time."""
    seen: list[Judgement] = []

    async def looks() -> bool:
        seen.append(await judged(settings))
        return bool(seen[-1].troubles) and seen[-1].troubles[0].cause == cause

    await wait_until(looks, f"status says {cause}", timeout_s=40)
    return seen[-1]


async def of_redis(settings: QueueSettings) -> list[Finding]:
    """What doctor says of how the servers stand."""
    found = await examine(settings, config=None, key_file=None)
    return [finding for finding in found if finding.check.partition(".")[0] == "redis"]


def top_once() -> str:
    """What `rollstream top` shows, in one line."""
    return CliRunner().invoke(app, ["top", "--once"]).stdout.replace("\n", " ")


async def staged(settings: QueueSettings) -> None:
    """A pipeline with work, and workers that live."""
    async with aclosing(command_client(settings)) as client:
        await Staged(settings, client).begin()


async def test_sentinels_and_a_replica_that_are_well_are_green_and_each_loss_is_said(
    server_kind: ServerKind, servers: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the replica is lost, then, in its stead, the master: it has nobody to take over."""
    watched = SentinelSet(server_kind, servers, dead_after_ms=1_000)
    settings = QueueSettings(redis_url=watched.url)
    careful = settings.model_copy(update={"wait_replicas": 1})
    await staged(settings)
    monkeypatch.setenv("ROLLSTREAM_REDIS_URL", watched.url)

    judgement, facts = await look_and_judge(careful, patience_s=PATIENCE_S)
    assert facts is not None
    assert (judgement.verdict, judgement.troubles) == (Verdict.HEALTHY, [])
    assert f"Sentinels 3/3 · master 127.0.0.1:{watched.master.port} · 1 replica in sync" in "\n".join(as_lines(judgement, facts))
    well = {finding.check: finding for finding in await of_redis(settings)}
    assert (well["redis.set_up"].grade, well["redis.wait_replicas"].grade) == (Grade.OK, Grade.NOTE)

    await asyncio.to_thread(watched.replica.kill)
    degraded, stopped = await sees(settings, "replica_lost"), await sees(careful, "replica_lost")
    assert (degraded.verdict, stopped.verdict) == (Verdict.DEGRADED, Verdict.STOPPED)
    assert "wait_replicas = 1: nothing that is written counts as done" in stopped.first_line
    assert command_line(stopped.troubles[0].next) == "rollstream redis cli INFO replication"
    assert "when it is lost, nobody takes over" in (await asyncio.to_thread(top_once))
    [lost] = [finding for finding in await of_redis(careful) if finding.check == "redis.replica_lost"]
    assert (lost.grade, lost.do.startswith("start the replica again")) == (Grade.FAIL, True)

    await asyncio.to_thread(watched.master.kill)
    down = await sees(settings, "master_down")
    assert down.verdict is Verdict.UNREACHABLE
    assert f"127.0.0.1:{watched.master.port}, the master of 'rollstream', does not answer" in down.first_line
    assert "it has no replica that is well: start it again" in down.first_line
    [said] = await of_redis(settings)
    assert "master_down" in said.what


async def test_a_cluster_that_is_well_is_green_and_each_loss_is_said(server_kind: ServerKind, servers: ExitStack) -> None:
    """Two shards, on two of the masters. A replica dies, then the master that it belonged to, and a slot is taken from another."""
    cluster = ClusterSet(server_kind, servers, dead_after_ms=2_000)
    settings = QueueSettings(redis_url=cluster.url, namespace="ab", shards=2)
    ours = [cluster.master_of(Keys.of_shard("ab", shard).meta) for shard in range(2)]
    assert ours[0] is not ours[1]
    await staged(settings)

    judgement, facts = await look_and_judge(settings, patience_s=PATIENCE_S)
    assert facts is not None
    assert (judgement.verdict, judgement.troubles) == (Verdict.HEALTHY, [])
    assert len([line for line in as_lines(judgement, facts) if "Cluster · master" in line and "1 replica in sync" in line]) == 3
    assert {finding.check: finding.grade for finding in await of_redis(settings)}["redis.set_up"] is Grade.OK

    lost = ours[1]
    await asyncio.to_thread(cluster.replica_of(lost).kill)
    degraded = await sees(settings, "replica_lost")
    assert degraded.verdict is Verdict.DEGRADED
    assert f"master 127.0.0.1:{lost.port} has no replica in sync" in degraded.first_line

    await asyncio.to_thread(lost.kill)
    down = await sees(settings, "master_down")
    assert down.verdict is Verdict.UNREACHABLE
    assert f"127.0.0.1:{lost.port}, master of the slots " in down.first_line
    assert "(shards 1), does not answer" in down.first_line

    (other,) = [master for master in cluster.masters if master not in ours]
    (first, *_), *_ = [row for row in other.tell("CLUSTER", "SLOTS") if int(row[2][1]) == other.port]
    lost.start()
    await wait_until(lambda: "cluster_state:ok" in str(other.tell("CLUSTER", "INFO")), "it is back", timeout_s=30)
    for node in cluster.nodes:
        if node is not cluster.replica_of(lost):
            node.tell("CLUSTER", "DELSLOTS", first)
    async with aclosing(command_client(settings)) as client:
        [unserved, *_] = of_set_up(await read_set_up(client, settings))
    assert (unserved.cause, unserved.is_blocking) == ("slots_unserved", False)
    assert f"serves the slots {first} (no shard of ours)" in unserved.what


async def test_sentinels_that_log_in_as_their_user_hand_over_and_are_refused_nothing(
    server_kind: ServerKind, servers: ExitStack, tmp_path: Path
) -> None:
    """Servers with the users of `rollstream redis acl`: the Sentinels log in as `sentinel`, the replica as `replica`, status as `ops`. The
    default user stays on for the test alone."""
    users = [tuple(line.split(" ")) for line in make_acl(tmp_path, "rs", with_sentinel=True).lines]
    secrets = {user: password_file(tmp_path, user).read_text().strip() for user in ("sentinel", "replica")}
    watched = SentinelSet(
        server_kind,
        servers,
        *(line for line in users if line[1] != "default"),
        ("masteruser", "replica"),
        ("masterauth", secrets["replica"]),
        of_sentinels=[("sentinel", "auth-user", MASTER, "sentinel"), ("sentinel", "auth-pass", MASTER, secrets["sentinel"])],
    )
    settings = QueueSettings(redis_url=watched.url)
    await staged(settings)
    ops = settings.model_copy(update={"redis_user": "ops", "redis_password_file": password_file(tmp_path, "ops")})

    assert "user=sentinel" in str(watched.master.tell("CLIENT", "LIST"))
    assert (await judged(ops)).verdict is Verdict.HEALTHY
    watched.hand_over()
    await wait_until(lambda: watched.leads_to(watched.replica), "the replica is promoted", timeout_s=40)
    await wait_until(lambda: watched.master.is_in_sync, "the old master is its replica", timeout_s=40)
    assert (await judged(ops)).verdict is Verdict.HEALTHY
    refused = [str(row) for node in (watched.master, watched.replica) for row in node.tell("ACL", "LOG")]
    assert not [row for row in refused if "'username', 'sentinel'" in row or "'username', 'replica'" in row]
