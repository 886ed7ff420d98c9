"""What a worker says of itself with each renewal of its name: how far its clock is off, and why it claims nothing."""

from __future__ import annotations

import time

import pytest

from pipeline.attempts import Slots
from pipeline.leases import LeaseKeeper
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import NameHolder
from pipeline.testing import wait_until
from tests.integration.pipeline.crew import Crew, passes

pytestmark = pytest.mark.one_server
SAYS = ("skew_ms", "idle_why")


async def said(client: AsyncClient, crew: Crew, consumer: str) -> list[bytes | None]:
    found: list[bytes | None] = await ask(client, "HMGET", crew.keys.worker(consumer), *SAYS)
    return found


async def test_a_member_says_why_it_claims_nothing_and_that_it_claims_again(crew: Crew) -> None:
    room = Slots(4, lambda: 0)
    room.idle_why = "node n1 is degraded: no user namespaces"
    member = crew.start(Stage.INIT, passes, room=room)

    async def says(why: str) -> bool:
        return await said(crew.client, crew, "init-n1-0") == [b"0", why.encode()]

    await wait_until(lambda: says("node n1 is degraded: no user namespaces"), "it says why")
    room.idle_why = ""
    await wait_until(lambda: says(""), "it says that it claims")
    await member.stop()


async def test_a_worker_whose_clock_is_off_says_by_how_much(crew: Crew) -> None:
    crew.settings = crew.settings.model_copy(update={"lease_s": 30.0})
    await crew.scripts.take_name(Stage.RUN, "run-n1-0", "b", NameHolder("n1", 1, 1, "0"), lock_ms=30_000)
    keeper = LeaseKeeper(
        crew.settings,
        crew.keys,
        Stage.RUN,
        "run-n1-0",
        "b",
        NameHolder("n1", 1, 1, "0"),
        snapshot=list,
        on_verdict=lambda job, word: None,
        on_usurped=lambda: None,
        beat=("none", True),
        wall_s=lambda: time.time() - 90,
    )

    async def is_behind() -> bool:
        skew = (await said(crew.client, crew, "run-n1-0"))[0]
        return skew is not None and -91_000 < int(skew) < -80_000

    async with keeper:
        await wait_until(is_behind, "it is a minute and a half behind")
