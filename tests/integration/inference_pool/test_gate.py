"""Which weights are called: labels, servers that start anew, addresses of other runs, and room for a group."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.inference_pool import (
    AllowedLabels,
    Begun,
    Call,
    DueLook,
    InferencePool,
    PoolLooks,
    Seen,
    Server,
    ServerTaken,
    Wanted,
    why_waiting,
)
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings

RUN, A, B = "run1", Server("http://a"), Server("http://b")
FIRST, SECOND, THIRD = (f"{RUN}/1.{number}" for number in (1, 2, 3))


@pytest.fixture
def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    return InferencePool(client, settings.namespace, lease_s=30.0)


@pytest.fixture
def looks(client: AsyncClient, settings: QueueSettings) -> PoolLooks:
    return PoolLooks(client, settings.namespace)


@pytest.fixture
def pauses(client: AsyncClient, settings: QueueSettings) -> PoolPauses:
    return PoolPauses(client, settings.namespace)


async def update(pauses: PoolPauses, label: str, *urls: str) -> None:
    """The pool's part of a weight update."""
    await pauses.take(RUN, 1, "t1", why="update", mode="keep", to=label, lease_s=30)
    await pauses.resume(RUN, "t1", label, label=label, labels=dict.fromkeys(urls, label))


async def see(looks: PoolLooks, url: str, label: str, *, started: str = "1", run: str = RUN) -> None:
    await looks.looked(DueLook(run, url, True, "", ()), Seen(alive=True, label=label, started=started))


async def standings(pool: InferencePool) -> dict[str, str]:
    return {server.url: server.standing for server in (await pool.state(RUN)).servers}


async def test_a_run_without_updates_takes_servers_with_any_label(pool: InferencePool, looks: PoolLooks) -> None:
    await pool.attach(RUN, [A])
    await see(looks, A.url, "default")

    found = await pool.assign(RUN, "", "j1", 1)

    assert found is not None
    assert await pool.begin_calls(RUN, [Call(found, "c")]) == [Begun("default", AllowedLabels())]


async def test_a_server_that_joins_later_gets_nothing_until_it_is_loaded_and_labelled(
    pool: InferencePool, looks: PoolLooks, pauses: PoolPauses
) -> None:
    await pool.attach(RUN, [A])
    await update(pauses, FIRST, A.url)
    unlabelled, labelled = Server("http://unlabelled"), Server("http://labelled")

    await pool.attach(RUN, [unlabelled, labelled])
    assert await standings(pool) == {A.url: "up", unlabelled.url: "unsynced", labelled.url: "unsynced"}, "nobody knows what they hold"
    await see(looks, unlabelled.url, "default")
    await see(looks, labelled.url, FIRST)

    assert await standings(pool) == {A.url: "up", unlabelled.url: "unsynced", labelled.url: "up"}
    servers = {found.server for found in [await pool.assign(RUN, "", f"j{number}", 1) for number in range(9)] if found}
    assert servers == {A.url, labelled.url}


async def test_no_server_of_a_trainer_is_called_before_its_first_update(pool: InferencePool, looks: PoolLooks, pauses: PoolPauses) -> None:
    await pool.attach(RUN, [Server(A.url, control="trainer")], after_update=True)
    await see(looks, A.url, "default")

    assert await pool.assign(RUN, "", "j1", 1) is None
    assert "the run has had no weight update yet" in why_waiting(await pool.state(RUN))[0].what

    await update(pauses, FIRST, A.url)
    assert await pool.assign(RUN, "", "j1", 1) is not None


async def test_a_server_that_reports_no_label_has_the_one_it_was_given_until_it_starts_anew(
    pool: InferencePool, looks: PoolLooks, pauses: PoolPauses
) -> None:
    await pool.attach(RUN, [A])
    await see(looks, A.url, "", started="1")
    await update(pauses, FIRST, A.url)
    await see(looks, A.url, "", started="1")
    assert await standings(pool) == {A.url: "up"}

    await see(looks, A.url, "", started="2")

    assert await standings(pool) == {A.url: "unsynced"}


async def test_a_label_that_an_answer_bore_unsyncs_its_server_unless_the_run_has_moved_on(pool: InferencePool, pauses: PoolPauses) -> None:
    """The report of an old call came after the update that had mended the server, and took it away for a second."""
    await pool.attach(RUN, [A])
    await update(pauses, FIRST, A.url)
    await pool.report_label(RUN, A.url, "default", AllowedLabels(FIRST, FIRST))
    assert await standings(pool) == {A.url: "unsynced"}

    await update(pauses, SECOND, A.url)
    await pool.report_label(RUN, A.url, "default", AllowedLabels(FIRST, FIRST))

    assert await standings(pool) == {A.url: "up"}


async def test_what_an_update_left_whose_trainer_died_is_called_under_either_label(
    pool: InferencePool, looks: PoolLooks, pauses: PoolPauses
) -> None:
    """Of three servers one has the new weights and says so, one the old ones, one is in between."""
    servers = [Server(f"http://{name}") for name in ("new", "old", "torn")]
    await pool.attach(RUN, servers)
    await update(pauses, FIRST, *(server.url for server in servers))
    await pauses.take(RUN, 1, "t2", why="update", mode="keep", to=SECOND, lease_s=0.05)
    for url, label in (("http://new", SECOND), ("http://old", FIRST), ("http://torn", f"{RUN}/updating-t2")):
        await see(looks, url, label)
    while (await pool.state(RUN)).is_paused:
        pass  # the lease of a dead trainer, which only time ends

    assert await standings(pool) == {"http://new": "up", "http://old": "up", "http://torn": "unsynced"}
    found = await pool.assign(RUN, "", "j1", 1)
    assert found is not None
    (begun,) = await pool.begin_calls(RUN, [Call(found, "c")])
    assert isinstance(begun, Begun)
    assert (begun.version, begun.allowed) == (found.version, AllowedLabels(FIRST, SECOND))


@pytest.mark.parametrize(
    ("began", "ended", "allowed", "refused"),
    [
        (AllowedLabels(FIRST, FIRST), AllowedLabels(FIRST, FIRST), [FIRST], [SECOND, "default", "", f"{RUN}/updating-t1", "run2/1.1"]),
        (AllowedLabels(FIRST, FIRST), AllowedLabels(THIRD, THIRD), [FIRST, SECOND, THIRD], [f"{RUN}/1.0", f"{RUN}/1.4", "default"]),
        (AllowedLabels(), AllowedLabels(FIRST, FIRST), ["default", FIRST], []),
        (AllowedLabels(FIRST, SECOND), AllowedLabels(FIRST, SECOND), [FIRST, SECOND], [THIRD]),
        (AllowedLabels(f"{RUN}/1.9", f"{RUN}/1.9"), AllowedLabels(f"{RUN}/2.0", f"{RUN}/2.0"), [f"{RUN}/2.0"], [f"{RUN}/2.1"]),
    ],
)
def test_tokens_are_believed_with_a_label_that_was_allowed_from_begin_to_end(
    began: AllowedLabels, ended: AllowedLabels, allowed: list[str], refused: list[str]
) -> None:
    both = began.until(ended)

    assert [label for label in allowed if not both.allows(label, RUN)] == []
    assert [label for label in refused if both.allows(label, RUN)] == []


async def test_an_address_belongs_to_one_run_unless_all_share_it(pool: InferencePool) -> None:
    """Two runs loaded their weights into one server, turn by turn, and each recorded tokens of the other's policy."""
    await pool.attach(RUN, [A])
    await pool.attach(RUN, [A])

    for shared in (False, True):
        with pytest.raises(ServerTaken, match=f"run {RUN} has it"):
            await pool.attach("run2", [B, Server(A.url, shared=shared)])
    assert (await pool.state("run2")).servers == (), "all or none"

    await pool.detach(RUN, [A.url])
    for run in (RUN, "run2"):
        await pool.attach(run, [Server(A.url, shared=True)])
    with pytest.raises(ServerTaken, match="as shared"):
        await pool.attach("run3", [A])


async def test_what_a_run_has_as_its_own_does_not_become_shared_by_being_given_again(pool: InferencePool) -> None:
    """A person added a run's own server once more, with --shared: updates left it out from then on, and nobody was told."""
    for shared, has in ((False, "as its own"), (True, "as shared")):
        await pool.attach(RUN, [Server(A.url, shared=shared)])
        with pytest.raises(ServerTaken, match=has):
            await pool.attach(RUN, [Server(A.url, shared=not shared)])
        await pool.attach(RUN, [Server(A.url, shared=shared)])
        await pool.detach(RUN, [A.url])


async def test_updates_of_a_run_do_not_concern_what_it_shares(pool: InferencePool, looks: PoolLooks, pauses: PoolPauses) -> None:
    judge = Server("http://judge", "judge", shared=True)
    await pool.attach(RUN, [A, judge])
    await update(pauses, FIRST, A.url)
    await see(looks, judge.url, "default")

    found = await pool.assign(RUN, "judge", "j1", 1)

    assert found is not None
    assert await pool.begin_calls(RUN, [Call(found, "c")]) == [Begun("default", AllowedLabels())]


async def test_members_of_a_group_meet_while_that_server_has_room(pool: InferencePool) -> None:
    servers = [Server(f"http://{name}") for name in "abcd"]
    await pool.attach(RUN, servers)
    for number in range(40):
        await pool.assign(RUN, "", f"other{number}", 1)

    group = [Wanted(job=f"run1.g.0.{member}", attempt=1, group="run1.g.0") for member in range(8)]
    found = await pool.assign_all(RUN, group)

    places = Counter(getattr(one, "server", "") for one in found)
    load = await pool.load(RUN)
    assert len(places) <= 3, "so that its prompt is computed in few places"
    assert max(places.values()) >= 3
    assert max(load.values()) <= 1.25 * sum(load.values()) / 4 + 1


async def test_a_server_that_has_nearly_all_gives_some_away_from_look_to_look(pool: InferencePool, looks: PoolLooks) -> None:
    """Of four servers that came up one after the other the first had all jobs, for as long as they ran, and the others none."""
    await pool.attach(RUN, [A])
    held = [await pool.assign(RUN, "", f"j{number}", 1) for number in range(40)]
    calls = [Call(found, "c") for found in held if found]
    await pool.attach(RUN, [B])

    for moved in (3, 3, 0):
        await see(looks, A.url, "")
        crowded = [call for call, said in zip(calls, await pool.begin_calls(RUN, calls), strict=True) if said == "crowded"]
        assert len(crowded) == moved, "an eighth of the surplus, while that is half as much again as the mean, and four"
        await pool.release(*(call.assignment for call in crowded))
        again = [await pool.assign(RUN, "", call.assignment.holder.split(":")[0], 1) for call in crowded]
        assert {found.server for found in again if found} <= {B.url}
        calls = [call for call in calls if call not in crowded]


async def test_servers_are_looked_at_though_the_clock_of_redis_went_back(
    pool: InferencePool, looks: PoolLooks, client: AsyncClient, settings: QueueSettings
) -> None:
    """An hour, by hand: for that hour nobody looked at any server."""
    await pool.attach(RUN, [A, B])
    await see(looks, A.url, "")
    key = Keys.of_pool(settings.namespace).looks
    for server in (A, B):
        await ask(client, "ZINCRBY", key, 3_600_000, f"{RUN} {server.url}")

    assert {look.url for look in await looks.due()} == {A.url, B.url}
    assert await looks.due() == [], "a look that somebody has is his"


async def test_a_look_is_believed_though_the_clock_of_redis_went_back_after_an_update(
    pool: InferencePool, looks: PoolLooks, client: AsyncClient, settings: QueueSettings
) -> None:
    """By that clock each look began before the update ended, and for an hour none was believed: no server was ever down."""
    await pool.attach(RUN, [A])
    keys = Keys.of_pool(settings.namespace)
    now_s, _ = await ask(client, "TIME")
    await ask(client, "HSET", keys.pool_run(RUN), "pause.over", (int(now_s) + 3600) * 1000)
    (its,) = await looks.due()

    for _ in range(2):
        told = await looks.looked(its, Seen(alive=False, why="refused"))

    assert told.now == "down"


async def test_thousands_of_leases_that_ran_out_together_are_swept_over_several_looks(
    pool: InferencePool, looks: PoolLooks, client: AsyncClient, settings: QueueSettings
) -> None:
    """A node with a thousand jobs a server was gone, and one script ended them all, while everybody else waited."""
    await pool.attach(RUN, [A])
    leases, calls = (
        name(RUN, A.url) for name in (Keys.of_pool(settings.namespace).pool_leases, Keys.of_pool(settings.namespace).pool_calls)
    )
    for number in range(2500):
        await ask(client, "ZADD", leases, 1, f"j{number}:1")
        await ask(client, "HSET", calls, f"j{number}:1", f"c{number}")

    left = []
    for _ in range(3):
        for look in await looks.due():
            await looks.looked(look, Seen(alive=True), period_ms=0)
        left.append(await ask(client, "ZCARD", leases))

    assert left == [1500, 500, 0]
    assert (await pool.state(RUN)).servers[0].to_abort == 2500, "each of their calls is to be aborted"


async def test_a_look_at_one_of_many_servers_does_not_count_the_jobs_of_all(
    pool: InferencePool, looks: PoolLooks, client: AsyncClient
) -> None:
    """With 200 servers each of 267 looks a second asked for the load of 200: a quarter of what Redis can do."""
    servers = [Server(f"http://h{number}") for number in range(64)]
    await pool.attach(RUN, servers)
    for first in range(0, 64 * 6, 64):
        await pool.assign_all(RUN, [Wanted(job=f"j{number}", attempt=1) for number in range(first, first + 64)])
    await client.config_resetstat()

    for server in servers[:10]:
        await see(looks, server.url, "")

    asked = (await client.info("commandstats"))["cmdstat_zcount"]["calls"]
    assert asked < 5 * 64, "once in a quarter of a second, and once for the server itself"


async def test_a_server_that_joins_gets_the_next_jobs_and_nobody_is_moved_to_it(pool: InferencePool) -> None:
    await pool.attach(RUN, [A])
    before = [await pool.assign(RUN, "", f"j{number}", 1) for number in range(6)]

    await pool.attach(RUN, [B])

    assert [await pool.assign(RUN, "", f"j{number}", 1) for number in range(6)] == before
    later = [await pool.assign(RUN, "", f"k{number}", 1) for number in range(6)]
    assert {found.server for found in later if found} == {B.url}
