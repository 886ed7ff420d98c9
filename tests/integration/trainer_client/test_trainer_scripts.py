"""The two scripts that only a trainer's client calls: `extend` and `save_state`."""

from __future__ import annotations

import pytest

from pipeline.errors import RunClosed, StaleIncarnation
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.testing import A_RUN, ManualWorker, a_group, a_template, a_unit, carry, jobs_of

TTL_S = 100.0


@pytest.fixture
def trainer_scripts(client: AsyncClient, keys: Keys) -> TrainerScripts:
    return TrainerScripts(client, keys)


async def test_all_keys_of_a_result_live_for_another_time_to_live(
    scripts: Scripts, trainer_scripts: TrainerScripts, client: AsyncClient, keys: Keys
) -> None:
    incarnation = await scripts.connect_run(A_RUN, nonce="n", ttl_s=TTL_S)
    group, single = a_group(members=2), a_unit(prompt="alone")
    await scripts.accept(A_RUN, incarnation, a_template(), "tpl", b"template", [group, single], max_waiting=10, window=10)
    await ManualWorker(scripts, Stage.EVAL).settle(*await carry(scripts, to=Stage.EVAL), body=b"grade", kind="eval")
    kept = [keys.group(group.id), keys.members(group.id), keys.prompt(group.id), keys.prompt(single.id)]
    for job in [*jobs_of(group), single.id]:
        kept += [keys.job(job), keys.body(job, 2, "run"), keys.body(job, 3, "eval")]
    for key in kept:
        assert await ask(client, "PEXPIRE", key, 5000) == 1, key

    gone = await trainer_scripts.extend(A_RUN, incarnation, [("group", group.id), ("job", single.id), ("job", f"{A_RUN}.never")])

    assert gone == 1
    for key in kept:
        assert 5000 < await ask(client, "PTTL", key) <= TTL_S * 1000, key


async def test_a_longer_life_is_not_cut(scripts: Scripts, trainer_scripts: TrainerScripts, client: AsyncClient, keys: Keys) -> None:
    incarnation = await scripts.connect_run(A_RUN, nonce="n", ttl_s=TTL_S)
    await scripts.accept(A_RUN, incarnation, a_template(), "tpl", b"template", [a_unit()], max_waiting=10, window=10)
    before = await ask(client, "PTTL", keys.prompt(a_unit().id))

    await trainer_scripts.extend(A_RUN, incarnation, [("job", a_unit().id)])

    assert before - 1000 < await ask(client, "PTTL", keys.prompt(a_unit().id)) <= before


async def test_a_key_of_another_type_does_not_keep_the_others_from_living_on(
    scripts: Scripts, trainer_scripts: TrainerScripts, client: AsyncClient, keys: Keys
) -> None:
    incarnation = await scripts.connect_run(A_RUN, nonce="n", ttl_s=TTL_S)
    bad, good = a_unit(prompt="bad"), a_unit(prompt="good")
    await scripts.accept(A_RUN, incarnation, a_template(), "tpl", b"template", [bad, good], max_waiting=10, window=10)
    await ask(client, "SET", keys.job(bad.id), "no hash", "EX", 60)
    await ask(client, "SET", keys.group("run1.odd.0"), "no hash", "EX", 60)
    await ask(client, "PEXPIRE", keys.job(good.id), 5000)

    gone = await trainer_scripts.extend(A_RUN, incarnation, [("job", bad.id), ("group", "run1.odd.0"), ("job", good.id)])

    assert gone == 2
    assert await ask(client, "PTTL", keys.job(good.id)) > 5000


async def test_both_are_fenced_by_the_incarnation(
    scripts: Scripts, trainer_scripts: TrainerScripts, client: AsyncClient, keys: Keys
) -> None:
    old = await scripts.connect_run(A_RUN, nonce="old", ttl_s=TTL_S)
    new = await scripts.connect_run(A_RUN, nonce="new", ttl_s=TTL_S)
    await trainer_scripts.save_state(A_RUN, new, b"new")

    with pytest.raises(StaleIncarnation):
        await trainer_scripts.save_state(A_RUN, old, b"old")
    with pytest.raises(StaleIncarnation):
        await trainer_scripts.extend(A_RUN, old, [])
    with pytest.raises(RunClosed, match="unknown"):
        await trainer_scripts.extend("nobody", 1, [])
    with pytest.raises(RunClosed, match="unknown"):
        await trainer_scripts.save_state("nobody", 1, b"x")

    assert await ask(client, "HGET", keys.run(A_RUN), "trainer") == b"new"
