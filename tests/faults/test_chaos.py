"""Promises 1, 2, 3 and 8 under fire: kill, freeze and cut everything while jobs run, then count (see `ops/chaos/campaign.py`)."""

from __future__ import annotations

import pytest

from ops.chaos.campaign import WORKER_FAILPOINTS, Campaign, Plan, Verdict
from pipeline.testing.servers import ServerKind, found_servers


def describe(verdict: Verdict) -> str:
    return "\n".join(["what did not hold:", *verdict.faults, str(verdict)])


@pytest.mark.timeout(420)
async def test_every_job_ends_once_whatever_dies(server_kind: ServerKind) -> None:
    """Promise 1: 800 jobs and more, 4 workers, 25 SIGKILLs at random moments and one after every script call, 1 % of replies cut, a frozen
    worker that wakes up after its successor took its name, four SIGKILLs of the server, and an outage of two leases that costs no
    attempt. Each call is met on one server, the rest on all: servers differ in how they die and come back, not in what a script does."""
    failpoints = WORKER_FAILPOINTS if server_kind == found_servers()[0] else ()
    kills = 25 if failpoints else 8
    plan = Plan(jobs=32 * kills, workers=4, kills=kills, failpoints=failpoints, restarts=4, outage=True, timeout_s=180)

    verdict = await Campaign(plan, server_kind).run()

    assert not verdict.faults, describe(verdict)
    assert verdict.jobs >= plan.jobs
    assert verdict.kills >= kills + len(failpoints)
    assert verdict.failpoints == failpoints
    assert (verdict.restarts, verdict.usurped, verdict.lost_by_outage) == (4, 1, 0)
    assert verdict.replies_cut > 0


@pytest.mark.one_server
@pytest.mark.timeout(300)
async def test_a_run_on_another_shard_is_not_held_up_by_one_that_floods(server_kind: ServerKind) -> None:
    """Two runs on two shards; the first drops three quarters of all jobs into the queue at once, workers die meanwhile: everything ends
    once, and
    the other run is done before the flood is."""
    plan = Plan(jobs=3200, workers=2, kills=10, failpoints=(), freezes=0, runs=2, timeout_s=180)

    verdict = await Campaign(plan, server_kind).run()

    assert not verdict.faults, describe(verdict)
    assert verdict.jobs >= 3200
