"""By-products of EVAL (the log of a test run) live beside the grade: kept by the script that ends the attempt, and gone with the grade,
whoever lets go of it. A kind of body that one of those scripts does not know would stay in Redis until its time to live: a week of logs."""

from __future__ import annotations

from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts.calls import Held
from pipeline.scripts.reward_calls import Report, Reward, RewardScripts
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.testing import a_group, a_unit

from .conftest import Run

LOG = {"log": b"\x1f\x8b whole\n", "junit": b"<xml/>"}
DAY_MS = 86_400_000


async def kept(run: Run, held: Held) -> dict[bytes, bytes]:
    return dict(await ask(run.client, "HGETALL", run.audit.keys.attached(held.job, held.attempt)))


async def bodies(run: Run, job: str) -> list[str]:
    """All that Redis has of a job beside its hash."""
    return sorted([key.decode() async for key in run.client.scan_iter(match=run.audit.keys.key("b", job, "*"), count=1000)])


async def acked(run: Run, job: str) -> None:
    (record,) = [row for row in await run.audit.results(run.name) if row["kind"] == "job" and row["job"] == job]
    assert await run.scripts.ack(run.name, run.incarnation, [(record["entry"], "job", job)]) == 1
    run.units = []


async def test_they_are_kept_with_the_grade_and_live_as_long(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)

    assert await run.worker(Stage.EVAL).settle(held, body=b"grade", attached=LOG) == ["ok"]

    assert await kept(run, held) == {b"log": LOG["log"], b"junit": LOG["junit"]}
    keys = run.audit.keys
    both = keys.attached(held.job, held.attempt), keys.body(held.job, held.attempt, "eval")
    lives = [int(await ask(run.client, "PTTL", key)) for key in both]
    assert abs(lives[0] - lives[1]) < 1000


async def test_each_job_of_a_batch_gets_its_own(run: Run) -> None:
    """Jobs of one call have as many arguments as they have by-products: one that is miscounted would end its neighbour with them."""
    await run.accept(a_group(members=3))
    first, second, third = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)

    assert await worker.settle(first, body=b"grade", attached={"log": b"1"}) == ["ok"]
    assert await worker.settle(second, third, body=b"grade", attached=LOG) == ["ok", "ok"]

    assert await kept(run, first) == {b"log": b"1"}
    assert await kept(run, second) == await kept(run, third) == {b"log": LOG["log"], b"junit": LOG["junit"]}
    assert {row["out"] for row in await run.audit.results(run.name) if row["kind"] == "job"} == {"ok"}


async def test_an_ack_takes_them_too(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(held, body=b"grade", attached=LOG)

    await acked(run, held.job)

    assert await bodies(run, held.job) == []


async def test_an_ack_of_a_group_takes_those_of_every_member(run: Run) -> None:
    await run.accept(a_group(members=2))
    held = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(*held, body=b"grade", attached=LOG)
    group = held[0].job.rpartition(".")[0]

    await run.scripts.ack(run.name, run.incarnation, [("", "group", group)])
    run.units = []

    assert [await bodies(run, job.job) for job in held] == [[], []]


async def test_they_live_on_while_a_trainer_holds_back_its_ack(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    await run.worker(Stage.EVAL).settle(held, body=b"grade", attached=LOG)
    key = run.audit.keys.attached(held.job, held.attempt)
    await ask(run.client, "PEXPIRE", key, 60_000)

    await TrainerScripts(run.client, run.audit.keys).extend(run.name, run.incarnation, [("job", held.job)])

    assert int(await ask(run.client, "PTTL", key)) > 0.9 * DAY_MS


async def test_a_zombie_keeps_nothing(run: Run) -> None:
    """A grader that was given up for dead comes back with its log after its successor has ended the job, and again after the ack."""
    await run.accept(a_unit())
    (old,) = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)
    await worker.recover("idle", old)
    (new,) = await run.worker(Stage.EVAL, "w2").take()
    assert await run.worker(Stage.EVAL, "w2").settle(new, body=b"grade", attached={"log": b"new"}) == ["ok"]

    assert await worker.settle(old, body=b"grade", attached=LOG) == ["fenced"]
    assert (await kept(run, old), await kept(run, new)) == ({}, {b"log": b"new"})

    await acked(run, new.job)
    assert await worker.settle(old, body=b"grade", attached=LOG) == ["fenced"]
    assert await bodies(run, new.job) == []


async def test_a_call_whose_reply_was_lost_leaves_them_as_they_are(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)
    await worker.settle(held, body=b"grade", attached=LOG)

    assert await worker.settle(held, body=b"grade", attached={"log": b"again"}) == ["again"]

    assert (await kept(run, held))[b"log"] == LOG["log"]


async def test_a_job_that_awaits_its_reward_keeps_them_until_its_result_is_acked(run: Run) -> None:
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    worker = run.worker(Stage.EVAL)

    assert await worker.await_reward(held, body=b"grade", attached=LOG) == ["ok"]
    assert await worker.await_reward(held, body=b"grade", attached=LOG) == ["again"]

    assert set(await kept(run, held)) == {b"log", b"junit"}
    await RewardScripts(run.scripts.run_script).report_rewards(run.name, run.incarnation, [Report(job=held.job, reward=Reward(score=1.0))])
    assert set(await kept(run, held)) == {b"log", b"junit"}
    await acked(run, held.job)
    assert await bodies(run, held.job) == []


async def test_a_job_that_was_cancelled_while_it_was_graded_keeps_them_until_its_ack(run: Run) -> None:
    """It ends as cancelled, with the grade that came too late; whoever lets go of that lets go of the log."""
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)
    await run.scripts.cancel("job", [held.job], "user")

    assert await run.worker(Stage.EVAL).settle(held, body=b"grade", attached=LOG) == ["cx:user"]

    await acked(run, held.job)
    assert await bodies(run, held.job) == []


async def test_without_a_grade_there_are_none(run: Run) -> None:
    """Nothing would name them, so nobody would let go of them."""
    await run.accept(a_unit())
    (held,) = await run.reach(Stage.EVAL)

    assert await run.worker(Stage.EVAL).settle(held, attached=LOG) == ["ok"]

    assert await kept(run, held) == {}
