from __future__ import annotations

import pytest

from pipeline.errors import BrokerMisused
from pipeline.keys import Keys
from pipeline.layout import check_layout
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings


async def test_the_first_process_writes_the_layout_and_the_next_agrees(settings: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    await check_layout(client, settings)
    await check_layout(client, settings)

    assert await ask(client, "HMGET", keys.meta, "layout", "shards") == [b"1", b"1"]


async def test_a_process_that_believes_in_other_shards_is_told_how_many_there_are(settings: QueueSettings, client: AsyncClient) -> None:
    await check_layout(client, settings.model_copy(update={"shards": 4}))

    with pytest.raises(BrokerMisused, match=r"has 4 shards, this process is set to 1: set ROLLSTREAM_SHARDS=4"):
        await check_layout(client, settings)


@pytest.mark.parametrize("written", [b"2", b"nonsense"])
async def test_a_namespace_of_another_layout_is_left_alone(
    written: bytes, settings: QueueSettings, client: AsyncClient, keys: Keys
) -> None:
    await ask(client, "HSET", keys.meta, "layout", written)

    with pytest.raises(BrokerMisused, match=r"laid out by version .*, this process knows 1"):
        await check_layout(client, settings)


@pytest.mark.one_server
async def test_each_namespace_has_a_word_of_its_own_that_all_its_processes_agree_on(client: AsyncClient, settings: QueueSettings) -> None:
    """Workers of two fleets on one machine kept their sandboxes in one folder, and swept each other's."""
    other = settings.model_copy(update={"namespace": settings.namespace[:10] + "other"})

    words = [await check_layout(client, ours) for ours in (settings, settings, other)]

    assert words[0] == words[1] != words[2]
    await ask(client, "DEL", f"{{{other.namespace}:0}}:meta")
