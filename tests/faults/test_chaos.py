"""Promises 1, 2, 3 and 8 under fire: kill, freeze and cut everything while jobs run, then count (see `ops/chaos/campaign.py`)."""

from __future__ import annotations

import pytest

from ops.chaos.campaign import WORKER_FAILPOINTS, Campaign, Plan, Verdict
from pipeline.testing.servers import ServerKind


def describe(verdict: Verdict) -> str:
    return "\n".join(["what did not hold:", *verdict.faults, str(verdict)])


@pytest.mark.timeout(420)
async def test_every_job_ends_once_whatever_dies(server_kind: ServerKind) -> None:
    """Promise 1: 800 jobs and more, 4 workers, 25 SIGKILLs at random moments and one after every script call, 1 % of replies cut, a frozen
    worker that wakes up after its successor took its name, four SIGKILLs of the server, and an outage of two leases that costs no
    attempt."""
    plan = Plan(jobs=800, workers=4, kills=25, freezes=1, restarts=4, outage=True, lost_replies=0.01, timeout_s=180)

    verdict = await Campaign(plan, server_kind).run()

    assert not verdict.faults, describe(verdict)
    assert verdict.jobs >= 800
    assert verdict.kills >= 25 + len(WORKER_FAILPOINTS)
    assert verdict.failpoints == WORKER_FAILPOINTS
    assert (verdict.restarts, verdict.usurped, verdict.lost_by_outage) == (4, 1, 0)
    assert verdict.replies_cut > 0


@pytest.mark.timeout(300)
async def test_a_run_on_another_shard_is_not_held_up_by_one_that_floods(server_kind: ServerKind) -> None:
    """Two runs on two shards; the first drops three quarters of all jobs into the queue at once, workers die meanwhile: everything ends
    once, and
    the other run is done before the flood is."""
    plan = Plan(jobs=3200, workers=2, kills=10, failpoints=(), freezes=0, runs=2, timeout_s=180)

    verdict = await Campaign(plan, server_kind).run()

    assert not verdict.faults, describe(verdict)
    assert verdict.jobs >= 3200
