"""INIT's lanes: jobs whose sandbox is made from an image go where that image is, or is to be, while there is room (ADR 18, "Placing")."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts.calls import LaneReader
from pipeline.testing import ManualWorker, a_template, a_unit

from .conftest import Run

CLASS = "isolated"
NODES = ("n1", "n2", "n3")


async def beat(run: Run, node: str, *, init: int = 2, slots: int = 8, classes: tuple[str, ...] = ("none", CLASS)) -> None:
    """A node with workers of INIT and RUN."""
    if init:
        lane = LaneReader(Stage.INIT, f"init-{node}-0", init, classes)
        await run.scripts.beat_node(node, "e1", live_ms=60_000, reads_lane=False, lane=lane)
    lane = LaneReader(Stage.RUN, f"run-{node}-0", slots, ("none",))
    await run.scripts.beat_node(node, "e1", live_ms=60_000, reads_lane=True, lane=lane)


def init_of(run: Run, node: str, *, lane: bool = False) -> ManualWorker:
    keys = run.audit.keys
    stream = keys.stage_stream(Stage.INIT, node=node) if lane else keys.stage_stream(Stage.INIT, capability=CLASS)
    return run.worker(Stage.INIT, f"init-{node}-0", stream=stream)


async def accept(run: Run, count: int) -> None:
    await run.accept(*(a_unit(prompt=f"e0-i{number}") for number in range(count)), template=a_template(capability=CLASS))


async def test_jobs_of_one_image_go_to_one_node_while_it_has_room_then_to_a_second_then_stay(run: Run) -> None:
    """Whoever claims them. With no room at either they are made where they are: nobody waits for an image."""
    for node in NODES:
        await beat(run, node, init=2, slots=4)
    await accept(run, 12)
    worker = init_of(run, "outside")

    held = await worker.take(12)
    went = [await run.scripts.place_by_image(each, "outside", "docker://one") for each in held]

    first, second = went[0], went[4]
    assert {first, second} < set(NODES)
    assert went == [first] * 4 + [second] * 4 + ["here"] * 4
    assert Counter(entry.stream for entry in await run.audit.stage_entries()) == {
        f"s:init:@{first}": 4,
        f"s:init:@{second}": 4,
        f"s:init:{CLASS}": 4,
    }
    claims = await init_of(run, first, lane=True).take(4)
    assert [(await run.scripts.place_by_image(each, first, "docker://one"), each.attempt) for each in claims] == [("here", 2)] * 4
    job = await run.audit.job(claims[0].job)
    assert (job["failed"], job["lost"]) == ("0", "0")


async def test_images_are_spread_over_nodes(run: Run) -> None:
    for node in NODES:
        await beat(run, node, init=250, slots=1000)
    await accept(run, 30)

    held = await init_of(run, "outside").take(30)
    went = Counter([await run.scripts.place_by_image(each, "outside", f"docker://{number}") for number, each in enumerate(held)])

    assert set(went) == set(NODES)
    assert min(went.values()) >= 5


async def test_a_node_gets_no_more_than_its_init_comes_to_soon(run: Run) -> None:
    """A hundred slots of RUN do not help when one slot of INIT has to fill them."""
    await beat(run, "n1", init=1, slots=100)
    await accept(run, 6)

    went = [await run.scripts.place_by_image(each, "outside", "docker://one") for each in await init_of(run, "outside").take(6)]

    assert went == ["n1"] * 4 + ["here"] * 2


@pytest.mark.parametrize("lacks", ["a class", "init", "run"])
async def test_nothing_goes_to_a_node_that_cannot_serve_it(run: Run, lacks: str) -> None:
    if lacks == "a class":
        await beat(run, "n1", classes=("none",))
    elif lacks == "init":
        await beat(run, "n1", init=0)
    else:
        await beat(run, "n1", slots=0)
    await accept(run, 1)
    (held,) = await init_of(run, "outside").take(1)

    assert await run.scripts.place_by_image(held, "outside", "docker://one") == "here"


async def test_a_move_is_fenced_and_a_lost_reply_is_no_second_move(run: Run) -> None:
    await beat(run, "n1")
    await accept(run, 1)
    (held,) = await init_of(run, "outside").take(1)

    assert await run.scripts.place_by_image(held, "outside", "docker://one") == "n1"
    assert await run.scripts.place_by_image(held, "outside", "docker://one") == "fenced"
    assert await init_of(run, "outside").hand_off(held) == ["fenced"]
    assert len(await run.audit.stage_entries()) == 1


@pytest.mark.parametrize("how", ["left", "degraded", "died"])
async def test_the_lane_of_a_node_whose_init_is_gone_is_swept_and_deleted(run: Run, how: str) -> None:
    await beat(run, "n1")
    await accept(run, 2)
    for held in await init_of(run, "outside").take(2):
        assert await run.scripts.place_by_image(held, "outside", "docker://one") == "n1"
    assert await run.scripts.sweep_lane("s:init:@n1", "n1") == (0, 2, False)
    lane = LaneReader(Stage.INIT, "init-n1-0", 2, ("none", CLASS))
    if how == "left":
        await run.scripts.beat_node("n1", "e1", live_ms=60_000, reads_lane=False, leaving=True, lane=lane)
    elif how == "degraded":
        await run.scripts.run_script("beat_node", "n1", "e1", 60_000, 0, 0, *lane.words(claims=False))
    else:
        await ask(run.client, "DEL", run.audit.keys.key("n", "n1", "init"))

    assert await run.scripts.sweep_lane("s:init:@n1", "n1") == (2, 0, True)

    assert [entry.stream for entry in await run.audit.stage_entries()] == [f"s:init:{CLASS}"] * 2
    (again, _) = await init_of(run, "outside").take(2)
    assert await run.scripts.place_by_image(again, "outside", "docker://one") == "here"
    job = await run.audit.job(again.job)
    assert (job["failed"], job["lost"]) == ("0", "0")


async def test_what_waited_long_in_a_lane_is_made_by_whoever_is_free(run: Run) -> None:
    """Its node has gone slow. The job is not placed a second time. By the server's clock, ten seconds: the entry is made to be older."""
    await beat(run, "n1")
    await accept(run, 1)
    (held,) = await init_of(run, "outside").take(1)
    assert await run.scripts.place_by_image(held, "outside", "docker://one") == "n1"
    keys, job = run.audit.keys, held.job
    lane = keys.stage_stream(Stage.INIT, node="n1")
    ((entry, fields),) = await ask(run.client, "XRANGE", lane, "-", "+")
    await ask(run.client, "DEL", lane)
    old = f"{int(entry.split(b'-')[0]) - 11_000}-0"
    await ask(run.client, "XADD", lane, old, *(part for pair in fields.items() for part in pair))
    await ask(run.client, "HSET", keys.job(job), "eid", old)

    assert await run.scripts.sweep_lane("s:init:@n1", "n1") == (1, 0, False)

    (again,) = await init_of(run, "outside").take(1)
    assert await run.scripts.place_by_image(again, "outside", "docker://one") == "here"


@pytest.mark.parametrize(("waited_ms", "back"), [(11_000, 0), (121_000, 1)])
async def test_what_waits_for_an_image_that_is_unpacked_waits_longer(run: Run, waited_ms: int, back: int) -> None:
    """A group of eight and two slots of INIT: after ten seconds six went elsewhere, and each node that took one unpacked it again."""
    await beat(run, "n1")
    await accept(run, 2)
    for held in await init_of(run, "outside").take(2):
        assert await run.scripts.place_by_image(held, "outside", "docker://one") == "n1"
    keys = run.audit.keys
    lane = keys.stage_stream(Stage.INIT, node="n1")
    entries = await ask(run.client, "XRANGE", lane, "-", "+")
    await ask(run.client, "DEL", lane)
    for number, (entry, fields) in enumerate(entries):
        old = f"{int(entry.split(b'-')[0]) - waited_ms}-{number}"
        await ask(run.client, "XADD", lane, old, *(part for pair in fields.items() for part in pair))
        await ask(run.client, "HSET", keys.job(fields[b"job"].decode()), "eid", old)
    assert len(await init_of(run, "n1", lane=True).take(1)) == 1

    assert await run.scripts.sweep_lane("s:init:@n1", "n1") == (back, 2 - back, False)


async def test_a_process_of_several_that_leaves_takes_its_slots_along(run: Run) -> None:
    await beat(run, "n1", init=2, slots=100)
    other = LaneReader(Stage.INIT, "init-n1-1", 5, ("none", CLASS))
    await run.scripts.beat_node("n1", "e1", live_ms=60_000, reads_lane=False, lane=other)
    await run.scripts.beat_node("n1", "e1", live_ms=60_000, reads_lane=False, leaving=True, lane=other)
    await accept(run, 10)

    went = [await run.scripts.place_by_image(each, "outside", "docker://one") for each in await init_of(run, "outside").take(10)]

    assert Counter(went) == {"n1": 8, "here": 2}
