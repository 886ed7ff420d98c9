"""Accepted jobs wait in the queue of their run; INIT's streams are kept short and shared fairly."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pipeline.errors import QueueFull, RunClosed
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.run_calls import RunScripts, RunShare
from pipeline.testing import a_group, a_template, a_unit

from .conftest import Connect, Run


async def fill(run: Run, jobs: int, *, window: int = 0) -> None:
    await run.accept(a_group(run.name, prompt="many", members=jobs), window=window)


async def work_off(run: Run, jobs: int, *, window: int) -> Counter[str]:
    """Begins jobs one after the other, as a fleet does that is slower than its trainers; which run each belonged to."""
    worker = run.worker(Stage.INIT, window=window)
    await run.scripts.admit(["none"], window)
    begun: Counter[str] = Counter()
    for _ in range(jobs):
        (held,) = await worker.take(1)
        begun[held.job.split(".")[0]] += 1
        await worker.settle(held)
    return begun


async def test_the_window_bounds_what_is_claimable_and_beginning_makes_room(run: Run) -> None:
    await fill(run, 10, window=3)
    assert await run.states() == {"waiting": 7, "ready": 3}

    await run.worker(Stage.INIT, window=3).take(2)

    assert await run.states() == {"waiting": 5, "ready": 3, "running": 2}
    assert await run.scripts.admit(["none"], 3) == 0


async def test_two_runs_take_turns(connect: Connect) -> None:
    one, two = await connect("one"), await connect("two")
    await fill(one, 100)
    await fill(two, 100)

    begun = await work_off(one, 64, window=4)

    assert begun["one"] == pytest.approx(32, abs=8)


async def test_turns_go_by_weight_also_when_the_window_is_short(connect: Connect) -> None:
    """Each begun job makes room for one. A round robin that gives each run its quantum on every visit, and goes on to the next run as
    soon as the room is used up, moves one job a visit whatever the weights say, and lets credit grow without end."""
    one, three = await connect("one", weight=1.0), await connect("three", weight=3.0)
    await fill(one, 300)
    await fill(three, 300)

    begun = await work_off(one, 128, window=2)

    assert begun["three"] / begun["one"] == pytest.approx(3, rel=0.15)


async def test_a_run_of_small_weight_is_not_starved(connect: Connect) -> None:
    """A weight so small that its quantum is less than one job: the credit has to add up over rounds."""
    small, big = await connect("small", weight=0.05), await connect("big", weight=1.0)
    await fill(small, 20)
    await fill(big, 300)

    begun = await work_off(small, 210, window=4)

    assert 5 <= begun["small"] <= 20


async def test_a_run_of_small_weight_alone_gets_the_whole_window(connect: Connect) -> None:
    small = await connect("small", weight=0.01)
    await fill(small, 20)

    assert await small.scripts.admit(["none"], 10) == 10


async def test_a_flood_of_one_run_does_not_delay_another(connect: Connect) -> None:
    """Ten thousand jobs are waiting; a run that comes later is served within its first turn."""
    flood, late = await connect("flood"), await connect("late")
    for number in range(10):
        await flood.accept(a_group("flood", prompt=f"p{number}", members=1000), window=8)
    await fill(late, 8)

    begun = await work_off(late, 24, window=8)

    assert begun["late"] == 8


async def test_a_quota_bounds_what_is_in_flight_and_an_end_makes_room_at_once(connect: Connect) -> None:
    """In flight is everything past admission, in any stage. When a job of the run ends, the next is admitted with it, not at the
    janitor's next round."""
    run = await connect(quota=2)
    await fill(run, 5)
    await run.scripts.admit(["none"], 10)
    assert await run.states() == {"waiting": 3, "ready": 2}
    init = run.worker(Stage.INIT, window=10)
    first, second = await init.take()
    await init.hand_off(first)
    assert await run.states() == {"waiting": 3, "ready": 1, "running": 1}

    await init.settle(second)

    assert await run.states() == {"waiting": 2, "ready": 2, "done": 1}
    await run.scripts.cancel("job", [first.job], "user")
    assert await run.states() == {"waiting": 1, "ready": 2, "done": 2}


async def test_a_run_at_its_quota_keeps_no_credit_and_blocks_nobody(connect: Connect) -> None:
    held, free = await connect("held", quota=1), await connect("free")
    await fill(held, 50)
    await fill(free, 50)
    for _ in range(10):
        await held.scripts.admit(["none"], 20)

    assert await held.states() == {"waiting": 49, "ready": 1}
    assert await free.states() == {"waiting": 31, "ready": 19}


async def test_a_paused_run_waits_and_goes_on(connect: Connect) -> None:
    run, other = await connect("run1"), await connect("other")
    await ask(run.client, "HSET", run.audit.keys.run("run1"), "paused", 1)
    await fill(run, 4, window=8)
    await fill(other, 4, window=8)
    assert (await run.states(), await other.states()) == ({"waiting": 4}, {"ready": 4})

    await ask(run.client, "HDEL", run.audit.keys.run("run1"), "paused")
    await run.scripts.admit(["none"], 8)

    assert await run.states() == {"ready": 4}


async def test_classes_have_windows_and_turns_of_their_own(run: Run) -> None:
    """Jobs that need isolation wait for nodes that have it; they must not fill the window of those that run anywhere."""
    await run.accept(a_group(prompt="isolated", members=10), template=a_template(capability="isolated"), window=4)
    await run.accept(a_group(prompt="any", members=10), window=4)

    streams = Counter(entry.stream for entry in await run.audit.stage_entries())
    assert streams == {"s:init:isolated": 4, "s:init": 4}
    worker = run.worker(Stage.INIT, stream=run.audit.keys.stage_stream(Stage.INIT, capability="isolated"), window=4)
    held = await worker.take(2)
    assert Counter(entry.stream for entry in await run.audit.stage_entries()) == {"s:init:isolated": 6, "s:init": 4}
    await worker.give_up(held[0], kind="back")
    await worker.hand_off(held[1])
    assert Counter(entry.stream for entry in await run.audit.stage_entries()) == {"s:init:isolated": 5, "s:init": 4, "s:run": 1}


async def test_priority_goes_first_and_equals_go_in_order(run: Run) -> None:
    for name, priority in (("low", -5), ("first", 0), ("second", 0), ("high", 100), ("least", -100)):
        await run.accept(a_unit(prompt=name), template=a_template(priority=priority), window=0)
    worker = run.worker(Stage.INIT, window=0)
    await run.scripts.admit(["none"], 10)

    assert [held.job.split(".")[1] for held in await worker.take()] == ["high", "first", "second", "low", "least"]


async def test_a_run_whose_queue_was_emptied_by_cancels_blocks_nobody(connect: Connect) -> None:
    """Its turn comes, there is nothing to move, and it leaves the round. The next run is served in the same call."""
    empty, full = await connect("empty"), await connect("full")
    await fill(empty, 4)
    await fill(full, 4)
    await empty.scripts.cancel("group", [empty.units[0].id], "user")

    assert await full.scripts.admit(["none"], 2) == 2

    await fill_again(empty)
    assert await full.scripts.admit(["none"], 100) == 4


async def fill_again(run: Run) -> None:
    await run.accept(a_group(run.name, prompt="more", members=2), window=0)


async def test_a_full_queue_refuses_whole_groups_and_says_when_to_come_again(run: Run) -> None:
    await run.accept(a_group(prompt="one", members=6), window=0, max_waiting=10)

    with pytest.raises(QueueFull, match="holds its most of 10") as refused:
        await run.accept(a_group(prompt="two", members=6), window=0, max_waiting=10)

    assert refused.value.retry_after_s > 0
    assert await run.states() == {"waiting": 6}
    assert await run.accept(a_group(prompt="three", members=4), window=0, max_waiting=10) == [True]


async def test_a_repeated_accept_is_not_refused_for_the_room_it_took_itself(run: Run) -> None:
    """The first call filled the queue and its reply was lost. The call is made again: everything in it is known, nothing new is asked
    for."""
    group = a_group(members=10)
    await run.accept(group, window=0, max_waiting=10)

    assert await run.accept(group, window=0, max_waiting=10) == [False]


async def in_flight(*runs: Run) -> tuple[int, ...]:
    """Admitted jobs of each run that have not ended."""
    return tuple([await run.audit.counter(run.name, "inflight") for run in runs])


async def flood(run: Run, jobs: int) -> None:
    for at in range(0, jobs, 1000):
        await run.accept(a_group(run.name, prompt=f"flood{at}", members=min(1000, jobs - at)), window=0)


async def test_admitted_jobs_are_one_to_three_by_weight_whatever_the_room(connect: Connect) -> None:
    """Under saturation, counted at admission: the error is never more than a turn of each."""
    one, three = await connect("one", weight=1.0), await connect("three", weight=3.0)
    await flood(one, 2000)
    await flood(three, 2000)
    source, window = random.Random(5), 0

    while window < 1600:
        window += source.randint(1, 40)
        await one.scripts.admit(["none"], window)

        first, second = await in_flight(one, three)
        assert first + second == window
        assert abs(first - window / 4) <= 8
    assert await one.scripts.admit(["none"], 1700) == 1700 - window


@pytest.mark.slow
async def test_twenty_thousand_jobs_of_one_run_delay_others_by_no_more_than_their_share(connect: Connect) -> None:
    """A small run that comes late waits for as many admissions as its share says, and a turn of each of the others."""
    big, waiting = await connect("big"), await connect("waiting")
    await flood(big, 20_000)
    await flood(waiting, 500)
    await big.scripts.admit(["none"], 256)
    late = await connect("late")
    await fill(late, 40)
    window = 256

    while await late.audit.counter("late", "inflight") < 40:
        window += 1
        await late.scripts.admit(["none"], window)

    assert window - 256 <= 3 * 40 + 3 * 8


async def test_weight_quota_and_pause_are_changed_while_a_run_goes_on(connect: Connect, client: AsyncClient, keys: Keys) -> None:
    ops = RunScripts(client, keys)
    one, two = await connect("one"), await connect("two")
    await flood(one, 1000)
    await flood(two, 1000)
    await one.scripts.admit(["none"], 160)
    assert await in_flight(one, two) == (80, 80)

    assert await ops.set_run("one", weight=3.0, window=160) == RunShare("open", 3.0, 0, False)
    await one.scripts.admit(["none"], 480)
    assert await in_flight(one, two) == (320, 160)

    await ops.set_run("one", quota=330, window=480)
    await one.scripts.admit(["none"], 640)
    assert await in_flight(one, two) == (330, 310)

    assert await ops.set_run("two", paused=True, window=640) == RunShare("open", 1.0, 0, True)
    assert await one.scripts.admit(["none"], 660) == 0
    await ops.set_run("one", quota=340, window=660)
    assert await in_flight(one, two) == (340, 310)
    await ops.set_run("two", paused=False, window=660)
    assert await in_flight(one, two) == (340, 320)
    await ops.set_run("one", quota=0, window=680)
    assert sum(await in_flight(one, two)) == 680


async def test_an_unknown_run_is_given_nothing(client: AsyncClient, keys: Keys) -> None:
    with pytest.raises(RunClosed, match="unknown"):
        await RunScripts(client, keys).set_run("nobody", weight=2.0, window=10)
    assert not await ask(client, "EXISTS", keys.run("nobody"))


async def test_a_trainer_that_reconnects_changes_what_it_names_and_leaves_the_rest(
    connect: Connect, client: AsyncClient, keys: Keys
) -> None:
    """An operator gave the run a larger share. Its trainer restarted without saying anything about that, and had weight 1 again."""
    run = await connect(nonce="first", weight=1.0, quota=7)
    await RunScripts(client, keys).set_run("run1", weight=5.0, paused=True, window=10)

    await run.scripts.connect_run("run1", nonce="second", ttl_s=3600.0)
    assert await RunScripts(client, keys).set_run("run1", window=10) == RunShare("open", 5.0, 7, True)

    await run.scripts.connect_run("run1", nonce="third", ttl_s=3600.0, weight=2.0, quota=0)
    assert await RunScripts(client, keys).set_run("run1", paused=False, window=10) == RunShare("open", 2.0, 0, False)
