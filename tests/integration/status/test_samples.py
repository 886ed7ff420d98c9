"""A line a minute of what Redis uses and how many jobs have left each stage: what rates are told from."""

from __future__ import annotations

import pytest

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.samples import EVERY_MS, KEPT, keep_sample, parse_sample, read_samples, take_sample
from pipeline.testing import wait_until
from tests.integration.pipeline.crew import Crew, passes

pytestmark = pytest.mark.one_server


async def test_a_sample_counts_the_jobs_that_left_each_stage(crew: Crew) -> None:
    members = [crew.start(stage, passes) for stage in Stage]
    await crew.add(3)
    await crew.results(3)

    sample = await take_sample(crew.client, crew.keys)

    assert sample.ended == (3, 3, 3)
    assert sample.used_bytes > 0
    for member in members:
        await member.stop()


async def test_the_janitor_keeps_one_line_a_minute_and_not_more_than_a_few(crew: Crew) -> None:
    crew.settings = crew.settings.model_copy(update={"lease_s": 0.4})
    member = crew.start(Stage.INIT, passes)
    await wait_until(lambda: ask(crew.client, "LLEN", crew.keys.samples), "the first line")
    assert not await keep_sample(crew.client, crew.keys)

    (first,) = await read_samples(crew.client, crew.keys)
    await member.stop()
    await ask(crew.client, "LSET", crew.keys.samples, 0, first.line().replace(str(first.at_ms), str(first.at_ms - EVERY_MS)))
    assert await keep_sample(crew.client, crew.keys)
    for _ in range(KEPT):
        await ask(crew.client, "LPUSH", crew.keys.samples, "no sample")
    assert await keep_sample(crew.client, crew.keys)

    assert await ask(crew.client, "LLEN", crew.keys.samples) == KEPT
    assert len(await read_samples(crew.client, crew.keys)) == 1
    assert parse_sample(b"1 2 x 4 5 6") is None
