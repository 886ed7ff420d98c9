"""Policy versions and the age of groups, in Redis: what `set_version` says, what a step drops, what `begin` settles (ADR 6)."""

from __future__ import annotations

import pytest

from pipeline.errors import InvalidRequest, RunClosed, StaleIncarnation
from pipeline.keys import Keys
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.supervisor.step_spec import CancelRule, OnStale, StepSpec, Surplus
from pipeline.testing import ManualWorker
from pipeline.testing.manual_worker import held_of
from tests.integration.supervisor.fleet import RUN, Ending, Fleet

DROP = StepSpec(target=1, n=2, over=4.0, on_stale=OnStale.DROP, max_staleness=1, cancel=CancelRule.CARRY)


@pytest.fixture
def trainer(client: AsyncClient, keys: Keys) -> TrainerScripts:
    """What a trainer says of its versions."""
    return TrainerScripts(client, keys)


def sampled_by(*versions: str, reward: float | None = None) -> Ending:
    """Mixed rewards; member i was sampled by version i."""

    def ending(_group: str, member: int) -> Settlement:
        version = versions[member % len(versions)]
        return Settlement(
            outcome=Outcome.OK,
            reward=float(member % 2) if reward is None else reward,
            sampled_tokens=3,
            total_tokens=8,
            first_version=version,
            last_version=version,
        )

    return ending


async def test_a_version_never_goes_back_within_an_incarnation_and_is_unknown_in_the_next(
    fleet: Fleet, trainer: TrainerScripts, keys: Keys
) -> None:
    await trainer.set_version(RUN, 1, 7)
    revision = (await fleet.view()).basis.revision
    await trainer.set_version(RUN, 1, 7)  # again after a lost reply

    assert (await fleet.view()).basis.revision == revision
    with pytest.raises(InvalidRequest, match="expected 7 or more"):
        await trainer.set_version(RUN, 1, 6)
    await fleet.connect("second")
    with pytest.raises(StaleIncarnation):
        await trainer.set_version(RUN, 1, 8)
    assert "ver" not in await fleet.hash(keys.run(RUN))
    assert (await fleet.view()).version is None
    await trainer.set_version(RUN, 2, 3)
    assert str((await fleet.view()).version) == "2.3"


async def test_a_run_that_nobody_knows_has_no_version(trainer: TrainerScripts) -> None:
    with pytest.raises(RunClosed):
        await trainer.set_version("nobodys", 1, 1)


async def test_a_new_version_wakes_supervisors(fleet: Fleet, trainer: TrainerScripts, keys: Keys, client: AsyncClient) -> None:
    await trainer.set_version(RUN, 1, 1)

    [(_, event)] = await ask(client, "XREVRANGE", keys.reward, "+", "-", "COUNT", 1)
    assert event == {b"kind": b"version", b"run": RUN.encode()}


async def test_a_group_that_is_too_old_is_dropped_as_stale_and_its_prompt_returns_whole(
    fleet: Fleet, trainer: TrainerScripts, keys: Keys
) -> None:
    await fleet.push_many(3)
    await trainer.set_version(RUN, 1, 5)
    await fleet.open(1, DROP)
    await fleet.supervise()
    await fleet.work()
    old, young, _ = fleet.groups()

    await fleet.end(old, sampled_by("1.5", "1.3"))
    await fleet.supervise()
    await fleet.end(young, sampled_by("1.5", "1.4"))
    await fleet.supervise()

    stale, joined = await fleet.records("group")
    assert (stale["grp"], stale["verdict"]) == (old, "stale")
    assert stale["why"] == "sampled by 1.3, step 1 is trained with 1.5, at most 1 apart"
    assert (joined["grp"], joined["verdict"]) == (young, "informative")
    [step] = await fleet.records("step")
    assert (step["stale"], step["groups"]) == ("1", young)
    state, _, draw, redraws, _ = (await fleet.mark("e0-0")).split()
    assert (state, draw, redraws) == ("flying", "1", "0")  # launched again at once, and the draw does not count
    assert "b.run" not in await fleet.hash(keys.job(f"{old}.0"))  # nobody will train on what it made


async def test_with_mark_the_same_group_joins(fleet: Fleet, trainer: TrainerScripts) -> None:
    await fleet.push_many(3)
    await trainer.set_version(RUN, 1, 5)
    await fleet.open(1, StepSpec(target=1, n=2, max_staleness=1))
    await fleet.supervise()
    await fleet.work()

    await fleet.end(fleet.groups()[0], sampled_by("1.0"))
    await fleet.supervise()

    [record] = await fleet.records("group")
    assert (record["verdict"], record["v0"]) == ("informative", "1.0")


async def test_a_parked_group_grows_old_until_a_step_opens(fleet: Fleet, trainer: TrainerScripts) -> None:
    """Two groups close for one place. The second waits; two updates later a step opens, and it is two behind."""
    await fleet.push_many(2)
    await trainer.set_version(RUN, 1, 1)
    await fleet.open(1, DROP)
    await fleet.supervise()
    await fleet.work()
    for group in fleet.groups():
        await fleet.end(group, sampled_by("1.1"))
    await fleet.supervise()
    assert len((await fleet.view()).parked) == 1

    await trainer.set_version(RUN, 1, 2)
    await trainer.set_version(RUN, 1, 3)
    await fleet.supervise()
    assert len((await fleet.view()).parked) == 1  # no step is there that could say what is too old
    await fleet.open(2, DROP)
    await fleet.supervise()

    verdicts = {record["grp"]: (record["verdict"], record["step"]) for record in await fleet.records("group")}
    assert verdicts == {f"{RUN}.e0-0.0": ("informative", "1"), f"{RUN}.e0-1.0": ("stale", "2")}
    assert (await fleet.view()).parked == ()


async def test_steps_that_are_not_trained_yet_are_updates_to_come(fleet: Fleet, trainer: TrainerScripts) -> None:
    """Step 1 was reached and is in training while step 2 is open: a group for step 2 will be one update older than it is now."""
    await fleet.push_many(4)
    await trainer.set_version(RUN, 1, 1)
    await fleet.open(1, DROP)
    await fleet.open(2, DROP)
    await fleet.supervise()
    await fleet.work()
    first, second, third, _ = fleet.groups()
    await fleet.end(first, sampled_by("1.1"))
    await fleet.supervise()
    assert (await fleet.view()).untrained == (1,)

    await fleet.end(second, sampled_by("1.0"))  # trained with 1.2 at the earliest
    await fleet.supervise()
    assert [record["verdict"] for record in await fleet.records("group")] == ["informative", "stale"]

    await trainer.set_version(RUN, 1, 2)  # the update of step 1
    assert (await fleet.view()).untrained == ()
    await fleet.end(third, sampled_by("1.1"))
    await fleet.supervise()
    assert [record["verdict"] for record in await fleet.records("group")] == ["informative", "stale", "informative"]


async def test_the_first_version_of_an_incarnation_trains_no_step_and_a_step_that_comes_again_is_trained_again(
    fleet: Fleet, trainer: TrainerScripts
) -> None:
    """A trainer dies after the update of step 1 and before its ack: step 1 comes again, and brings another update."""
    await fleet.push_many(4)
    await trainer.set_version(RUN, 1, 0)
    await fleet.open(1, DROP)
    await fleet.supervise()
    await fleet.work()
    await fleet.end(fleet.groups()[0], sampled_by("1.0"))
    await fleet.supervise()
    await trainer.set_version(RUN, 1, 1)

    await fleet.connect("second")
    assert await fleet.open(1, DROP) == "reached"
    await fleet.open(2, DROP)
    await trainer.set_version(RUN, 2, 0)

    assert (await fleet.view()).untrained == (1,)
    await trainer.set_version(RUN, 2, 1)
    assert (await fleet.view()).untrained == ()


async def test_a_job_of_a_group_that_can_only_be_thrown_away_is_settled_when_it_is_begun(
    fleet: Fleet, trainer: TrainerScripts, scripts: Scripts
) -> None:
    """One member was sampled by version 1 and has ended; its sibling waited in a queue until version 3. To run it would be for nothing."""
    await fleet.push("e0-0")
    await trainer.set_version(RUN, 1, 1)
    await fleet.open(1, DROP)
    await fleet.supervise()
    init, run = ManualWorker(scripts, Stage.INIT), ManualWorker(scripts, Stage.RUN)
    await init.hand_off(*await init.take())
    [claimed, waiting] = await run.deliver()
    [begun] = await run.begin(claimed)
    assert begun.state == "ok"
    await run.hand_off(held_of(begun))
    evaluate = ManualWorker(scripts, Stage.EVAL)
    [graded] = await evaluate.take()
    await evaluate.settle(graded, settlement=sampled_by("1.1")("", 0), body=b"grade", kind="eval")

    await trainer.set_version(RUN, 1, 2)
    await trainer.set_version(RUN, 1, 3)
    [found] = await run.begin(waiting)

    assert (found.state, found.attempt) == ("ended", 0)
    records = {record["n"]: (record["out"], record["why"]) for record in await fleet.records("job")}
    assert records == {"0": ("ok", ""), "1": ("cancelled", "stale")}
    await fleet.supervise()
    [group] = await fleet.records("group")
    assert (group["verdict"], group["why"]) == ("stale", "1 of 2 valid, 2 needed: cancelled (stale) 1")
    assert (await fleet.mark("e0-0")).split()[2:4] == ["1", "0"]


async def test_a_job_is_begun_however_long_ago_it_was_launched_while_nothing_of_its_group_is_old(
    fleet: Fleet, trainer: TrainerScripts, scripts: Scripts
) -> None:
    await fleet.push("e0-0")
    await trainer.set_version(RUN, 1, 1)
    await fleet.open(1, DROP)
    await fleet.supervise()
    await trainer.set_version(RUN, 1, 50)

    assert len(await ManualWorker(scripts, Stage.INIT).take()) == 2


async def test_with_mark_nothing_is_cancelled_for_its_age(fleet: Fleet, trainer: TrainerScripts, scripts: Scripts) -> None:
    await fleet.push("e0-0")
    await trainer.set_version(RUN, 1, 1)
    await fleet.open(1, StepSpec(target=1, n=2))
    await fleet.supervise()
    await fleet.work()
    [group] = fleet.groups()
    await fleet.end(group, sampled_by("1.1"), [0])
    job = fleet.held[f"{group}.1"]
    await ManualWorker(scripts, Stage.EVAL).give_up(job, kind="back")

    await trainer.set_version(RUN, 1, 50)

    assert [held.job for held in await ManualWorker(scripts, Stage.EVAL).take()] == [job.job]


async def test_surplus_can_be_discarded(fleet: Fleet) -> None:
    await fleet.push_many(3)
    spec = StepSpec(target=1, n=2, over=4.0, surplus=Surplus.DISCARD, cancel=CancelRule.CARRY)
    await fleet.open(1, spec)
    await fleet.supervise()
    await fleet.work()
    for group in fleet.groups()[:2]:
        await fleet.end(group)
    await fleet.supervise()

    assert [(record["verdict"], record["why"]) for record in await fleet.records("group")] == [
        ("informative", ""),
        ("surplus", "no open step has room"),
    ]
    assert (await fleet.view()).parked == ()
    assert (await fleet.mark("e0-1")).split()[0] == "reserve"
