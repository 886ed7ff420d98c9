"""The exporter on a Cluster: runs in shards on several masters, whose counters are each read where they are, while jobs go through."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing

import pytest

from ops.metrics.balance import read_balance
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.testing import ServerKind
from tests.integration.metrics.test_exporter import an_exporter, scraped
from tests.integration.redis_servers.patient_crew import PatientCrew
from tests.integration.redis_servers.test_cluster import SHARDS, Fleet, one_run_a_shard
from tests.redis_sets import ClusterSet

pytestmark = pytest.mark.one_server
JOBS = 40


async def test_no_job_seems_missing_or_doubled_while_jobs_go_through_all_shards(server_kind: ServerKind) -> None:
    with ExitStack() as stack:
        cluster = ClusterSet(server_kind, stack)
        settings = QueueSettings(redis_url=cluster.url, shards=SHARDS)
        async with aclosing(command_client(settings)) as client, aclosing(command_client(settings)) as looker:
            fleet = Fleet(cluster, settings, client, PatientCrew(settings, client))
            await fleet.add(JOBS)
            fleet.start()
            ended = asyncio.create_task(fleet.ended())
            seen = set[int | None]()
            while not ended.done():
                for shard, run in enumerate(one_run_a_shard(SHARDS)):
                    keys = Keys.of_shard(settings.namespace, shard)
                    found = await read_balance(looker, keys, [run], [keys.short(keys.stage_stream(stage)) for stage in Stage])
                    seen |= {found.astray, found.runs[run].unaccounted}
            await ended
            scrape = await scraped(await an_exporter(settings))
            await fleet.crew.leave()

    assert seen <= {0, None}, "not known is all right, wrong is not"
    assert 0 in seen
    for shard, run in enumerate(one_run_a_shard(SHARDS)):
        assert scrape[f'rollstream_shard_astray_jobs{{shard="{shard}"}}'] == 0
        assert scrape[f'rollstream_run_unaccounted_jobs{{run="{run}"}}'] == 0
        assert scrape[f'rollstream_run_ended_jobs_total{{outcome="ok",run="{run}"}}'] == JOBS
        assert scrape[f'rollstream_run_unread_results{{run="{run}"}}'] == JOBS
