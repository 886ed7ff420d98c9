"""A node's lane goes before the common stream, three to one, and neither starves the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, reader_client
from pipeline.settings import QueueSettings
from pipeline.streams import BLOCK_S, StreamReader

pytestmark = pytest.mark.one_server


@pytest.fixture
async def reading(settings: QueueSettings) -> AsyncIterator[AsyncClient]:
    async with aclosing(reader_client(settings, block_s=BLOCK_S)) as client:
        yield client


@pytest.fixture
async def reader(reading: AsyncClient, client: AsyncClient, keys: Keys) -> StreamReader:
    """A RUN worker's, with the lane of its node."""
    streams = [keys.stage_stream(Stage.RUN, node="n1"), keys.stage_stream(Stage.RUN)]
    reader = StreamReader(reading, client, keys, Stage.RUN, "w1", streams)
    await reader.open()
    return reader


async def fill(client: AsyncClient, stream: str, count: int) -> None:
    for number in range(count):
        await ask(
            client, "XADD", stream, "*", "job", f"r.p{number}.0.0", "run", "r", "grp", f"r.p{number}.0", "n", 0, "task", "t", "att", 0
        )


async def taken(reader: StreamReader, count: int, *, reads: int, most_streams: int = 8) -> Counter[str]:
    """Entries by stream, in so many reads."""
    found: Counter[str] = Counter()
    for _ in range(reads):
        claims, _ = await reader.read(count, block=False, held=(), most_streams=most_streams)
        found.update(claim.stream for claim in claims)
    return found


@pytest.mark.parametrize(("count", "most_streams"), [(8, 8), (1, 8), (1, 1), (3, 2)])
async def test_when_both_are_deep_three_of_four_come_from_the_lane(
    reader: StreamReader, client: AsyncClient, count: int, most_streams: int
) -> None:
    """One `XREADGROUP COUNT n` over both delivers n of each: jobs that hold an environment waited as long as those that have none."""
    for stream in reader.streams:
        await fill(client, stream, 200)
    await taken(reader, count, reads=1, most_streams=most_streams)

    found = await taken(reader, count, reads=24, most_streams=most_streams)

    assert found == {"s:run:@n1": 18 * count, "s:run": 6 * count}


async def test_what_the_lane_leaves_is_taken_from_the_common_stream_at_once(reader: StreamReader, client: AsyncClient) -> None:
    await fill(client, reader.streams[0], 2)
    await fill(client, reader.streams[1], 40)

    assert await taken(reader, 8, reads=2) == {"s:run:@n1": 2, "s:run": 16}
    assert await taken(reader, 8, reads=3) == {"s:run": 24}


async def test_a_lane_that_fills_again_is_favoured_again(reader: StreamReader, client: AsyncClient) -> None:
    await fill(client, reader.streams[1], 100)
    await taken(reader, 4, reads=2)
    await fill(client, reader.streams[0], 100)
    await taken(reader, 4, reads=1)

    assert await taken(reader, 4, reads=16) == {"s:run:@n1": 48, "s:run": 16}


async def test_classes_of_init_are_alike(reading: AsyncClient, client: AsyncClient, keys: Keys) -> None:
    """None of them is a lane: nothing that waits there has an environment."""
    streams = [keys.stage_stream(Stage.INIT, capability=name) for name in ("none", "isolated")]
    reader = StreamReader(reading, client, keys, Stage.INIT, "w1", streams)
    await reader.open()
    for stream in streams:
        await fill(client, stream, 50)

    assert await taken(reader, 4, reads=8) == {"s:init": 32, "s:init:isolated": 32}
