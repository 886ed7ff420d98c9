"""INIT's lanes when nodes are sick, gone, small or many: a placed job waits for none of them, and asking costs no more (ADR 18,
"Placing")."""

from __future__ import annotations

from collections import Counter
from hashlib import sha1

import pytest

from pipeline.janitor import Janitor
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts.calls import MAX_BATCH, LaneReader
from pipeline.settings import QueueSettings

from .conftest import Run
from .test_placing import CLASS, NODES, accept, beat, init_of

IMAGE = "docker://one"
SERVED = ("none", CLASS)


def ranked(image: str = IMAGE) -> list[str]:
    """The nodes in the order in which an image looks at them."""
    return sorted(NODES, key=lambda node: sha1(f"{image}/{node}".encode()).hexdigest(), reverse=True)


async def reads_asked(run: Run) -> int:
    """Reads of hashes that the server did so far, those of scripts included."""
    info = await ask(run.client, "INFO", "commandstats")
    return sum(told["calls"] for name, told in info.items() if name.lower() in ("cmdstat_hget", "cmdstat_hmget", "cmdstat_hgetall"))


async def test_a_start_that_failed_is_tried_on_the_next_node(run: Run) -> None:
    """The node that was first for an image could not start it (its disk was bad), was not ill enough to say so, and got every retry:
    each attempt of the job failed there, and it ended as a dead letter while two nodes that could do it stood idle."""
    for node in NODES:
        await beat(run, node)
    await accept(run, 1)
    went: list[str] = []

    for _ in NODES:
        (held,) = await init_of(run, "outside").take(1)
        went.append(await run.scripts.place_by_image(held, "outside", IMAGE))
        (held,) = await init_of(run, went[-1], lane=True).take(1)
        await init_of(run, went[-1]).give_up(held)
        await run.scripts.promote()

    assert went == ranked()


async def test_what_a_node_took_from_its_lane_it_makes(run: Run) -> None:
    """It was placed with the second node, since the first had no room. The first had some by the time the second took it up, and it was
    sent on: to wait in a lane again, and with rooms that come and go as often as they do."""
    first, second, _ = ranked()
    await beat(run, first, slots=1)
    await beat(run, second)
    await accept(run, 2)
    one, other = await init_of(run, "outside").take(2)
    assert await run.scripts.place_by_image(one, "outside", IMAGE) == first
    assert await run.scripts.place_by_image(other, "outside", IMAGE) == second
    await beat(run, first, slots=8)

    (taken,) = await init_of(run, second, lane=True).take(1)

    assert await run.scripts.place_by_image(taken, second, IMAGE) == "here"


async def test_nodes_without_run_are_no_ones_choice(run: Run) -> None:
    """The two nodes that were first for an image had lost their RUN, so that neither had room: every node that asked was told to unpack
    it."""
    first, second, third = ranked()
    await beat(run, first, slots=0)
    await beat(run, second, slots=0)
    await beat(run, third)
    await accept(run, 2)
    one, other = await init_of(run, "outside").take(2)

    assert await run.scripts.place_by_image(one, "outside", IMAGE) == third
    assert await run.scripts.place_by_image(other, first, IMAGE) == third


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.RUN])
async def test_the_slots_of_a_killed_process_lapse_though_others_of_its_node_live(run: Run, stage: Stage) -> None:
    """A launcher was killed and came back with fewer processes, under the same name. They kept the key alive, and the slots of those
    that were no more in it for ever: the node was sent four times what it can run. `until:` is set back as if its time had passed."""
    await beat(run, "n1", init=1, slots=2)
    gone = LaneReader(stage, f"{stage.value}-n1-1", 100, SERVED)
    await run.scripts.beat_node("n1", "e1", live_ms=60_000, reads_lane=stage is Stage.RUN, lane=gone)
    key = run.audit.keys.key("n", "n1", stage.value)
    await ask(run.client, "HSET", key, f"until:{gone.consumer}", 1)

    await beat(run, "n1", init=1, slots=2)

    assert sorted(await ask(run.client, "HKEYS", key)) == sorted(
        [
            b"classes",
            f"slots:{stage.value}-n1-0".encode(),
            f"until:{stage.value}-n1-0".encode(),
            *([b"epoch"] if stage is Stage.RUN else []),
        ]
    )
    await accept(run, 6)
    went = [await run.scripts.place_by_image(each, "outside", IMAGE) for each in await init_of(run, "outside").take(6)]
    assert Counter(went) == {"n1": 2, "here": 4}


async def test_a_lane_that_was_deleted_and_is_used_again_is_looked_after(run: Run) -> None:
    """INIT of a node was degraded for a moment: its lane was swept, deleted and forgotten. Then it was well, got a job, and was killed
    before it read. The janitor looks after the lanes that `streams` names; this one was not among them, and the job waited until its
    deadline."""
    await beat(run, "n1")
    lane = LaneReader(Stage.INIT, "init-n1-0", 2, SERVED)
    await run.scripts.run_script("beat_node", "n1", "e1", 60_000, 0, 0, *lane.words(claims=False))
    assert await run.scripts.sweep_lane("s:init:@n1", "n1") == (0, 0, True)
    await beat(run, "n1")
    await accept(run, 1)
    (held,) = await init_of(run, "outside").take(1)
    assert await run.scripts.place_by_image(held, "outside", IMAGE) == "n1"
    await ask(run.client, "DEL", run.audit.keys.key("n", "n1", "init"))

    await Janitor(run.client, run.scripts, run.audit.keys, QueueSettings(), "janitor").round(quiet=False)

    assert [entry.stream for entry in await run.audit.stage_entries()] == [f"s:init:{CLASS}"]


async def test_what_waits_behind_many_that_are_held_is_swept_too(run: Run) -> None:
    """A sweep looked at the first entries of a lane. A node with more slots of INIT than that, all of them at an image of minutes, kept
    what waited behind them until they were done."""
    slots = MAX_BATCH + 1
    await beat(run, "n1", init=slots, slots=4 * slots)
    await accept(run, slots + 3)
    for held in await init_of(run, "outside").take():
        assert await run.scripts.place_by_image(held, "outside", IMAGE) == "n1"
    assert len(await init_of(run, "n1", lane=True).take(slots)) == slots
    await ask(run.client, "DEL", run.audit.keys.key("n", "n1", "init"))

    assert await run.scripts.sweep_lane("s:init:@n1", "n1") == (3, slots, False)


async def test_what_its_node_serves_no_more_leaves_the_lane(run: Run) -> None:
    """The node came back within its lease with sandboxes of another kind: it took each job of the lane up, and handed it back."""
    await beat(run, "n1")
    await accept(run, 1)
    (held,) = await init_of(run, "outside").take(1)
    assert await run.scripts.place_by_image(held, "outside", IMAGE) == "n1"
    await beat(run, "n1", classes=("none",))

    assert await run.scripts.sweep_lane("s:init:@n1", "n1") == (1, 0, False)


@pytest.mark.parametrize("broken", ["nodes", "n:n1:init", "n:n1:run", "s:init:@n1", "s:run:@n1"])
async def test_a_key_of_another_type_costs_a_node_and_not_the_jobs(run: Run, broken: str) -> None:
    await beat(run, "n1")
    await accept(run, 1)
    (held,) = await init_of(run, "outside").take(1)
    key = run.audit.keys.key(broken)
    await ask(run.client, "SET", key, "not ours", "EX", 60)

    assert await run.scripts.place_by_image(held, "outside", IMAGE) == "here"

    await ask(run.client, "DEL", key)


@pytest.mark.parametrize("image", [IMAGE, "/", "\0", "a b\r\n", "\u202e\u6f22", "long" * 50_000])
async def test_asking_costs_the_same_however_many_nodes_there_are(run: Run, image: str) -> None:
    """Each call read something of each node, and hashed the whole name for each: with 400 nodes it was 400 reads, and 100 ms for a long
    name."""
    for number in range(100):
        await beat(run, f"n{number}")
    await accept(run, 1)
    (held,) = await init_of(run, "outside").take(1)
    before = await reads_asked(run)

    assert (await run.scripts.place_by_image(held, "outside", image)).startswith("n")

    assert await reads_asked(run) - before <= 4
