"""Validations: every prompt and every member, while training goes on, and numbers that say what they are of."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgpack
import pytest

from pipeline.causes import Cause
from pipeline.codec import decode
from pipeline.errors import InvalidRequest, StaleIncarnation
from pipeline.keys import Keys
from pipeline.messages import CancelReason, JobTemplate, Prompt
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Begun, Claim, Scripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.supervisor.step_spec import CancelRule
from pipeline.testing import PrivateServer, QueueAudit, wait_until
from tests.integration.trainer_client.pump import Pump, alternating, pumping
from tests.integration.trainer_client.rows import row_of, rows
from trainer_client import (
    JobRequest,
    Run,
    SamplingRequest,
    StepRequest,
    Validation,
    ValidationRequest,
    WaitTimeout,
    connect,
    connect_blocking,
)
from workers.agent import call_seed
from workers.stages.bodies import Bodies

RUN = "valid"
SPEC = StepRequest(task="math", groups=2, n=4, ahead=2)
SAMPLING = SamplingRequest(temperature=0.6, top_p=0.95)


def a_validation(count: int = 3, n: int = 4, **changes: object) -> ValidationRequest:
    return ValidationRequest.parse({"task": "math", "prompts": rows(count), "n": n, "sampling": SAMPLING, **changes})


def all_or_nothing(job: str) -> float:
    """Training prompts are mixed, validation prompts all right or all wrong: a filter would leave none of them."""
    return float(row_of(job) % 2) if job.split(".")[1].startswith("v") else alternating(job)


async def leftovers(client: AsyncClient, keys: Keys) -> list[str]:
    """Keys of validations' jobs, groups and bodies."""
    found = [keys.short(key.decode()) for key in await ask(client, "KEYS", f"{keys.tag}:*")]
    return sorted(key for key in found if key.startswith(("j:", "g:", "b:")) and ".v" in key)


async def test_every_prompt_and_member_comes_back_in_order(settings: QueueSettings, pump: Pump) -> None:
    """No supervisor is there: a validation needs none."""
    async with connect(settings, run=RUN) as run:
        validation = await run.validate(a_validation(), timeout_s=20)

        assert validation.index == 1
        assert [dict(group.prompt) for group in validation.groups] == rows(3)
        for group in validation.groups:
            assert [member.number for member in group.members] == [0, 1, 2, 3]
            assert [member.result.record.member for member in group.members] == [0, 1, 2, 3]
            assert group.scores == (0.0, 1.0, 0.0, 1.0)
            assert group.mean == 0.5
            assert group.pass_at(2) == pytest.approx(1 - 1 / 6)
        assert str(validation.mean_at_k) == "0.5000 (12 of 12 members valid, 3 of 3 prompts)"
        assert validation.pass_at(1).value == 0.5
        assert validation.pass_at(2).value == pytest.approx(5 / 6)
        assert validation.pass_at(4).value == 1.0
        assert (validation.sampled_tokens, validation.total_tokens) == (12 * 7, 12 * 24)
        assert validation.metrics["members_valid"] == validation.metrics["members_asked"] == 12.0
        assert (validation.versions, validation.is_mixed) == (("1.0",), False)
        await validation.fetch()
        assert (await validation.members[0].result.trajectory()).answer == f"answer of {validation.members[0].result.job}"
        with pytest.raises(InvalidRequest, match="from 1 to 4"):
            validation.pass_at(5)


async def test_it_goes_on_beside_steps_and_neither_meets_the_other(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """All groups of the validation are all right or all wrong. The ledger would filter each of them, count it to a step, and draw its
    prompts from the reserve."""
    pump.rewarder = all_or_nothing

    async with connect(settings, run=RUN) as run:
        run.feed(rows(60), shuffle_seed=1)
        steps = run.steps(SPEC, start=1, count=6, timeout_s=30)
        first = await anext(steps)
        asked = asyncio.create_task(run.validate(a_validation(8), index=first.index, timeout_s=30))
        trained = [first] + [step async for step in steps]
        validation = await asked
        statistics = await run.statistics()

        assert [group.mean for group in validation.groups] == [0.0, 1.0] * 4
        assert all(len(step.groups) == 2 for step in trained)
        assert {group.prompt_id[0] for step in trained for group in step.groups} == {"e"}
        assert statistics.groups["validation"] == 8
        assert not {"filtered", "dropped", "dead"} & set(statistics.groups)
        assert statistics.prompts["trained"] >= 12
        assert not [group for group in await ask(client, "ZRANGE", keys.closed, 0, -1) if b".v" in group]


async def test_a_target_that_is_reached_cancels_nothing_of_a_validation(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    pump.held_back = {f"{RUN}.v1-0.0.{member}" for member in range(4)}

    async with connect(settings, run=RUN) as run:
        run.feed(rows(40))
        asked = asyncio.create_task(run.validate(a_validation(1), timeout_s=30))
        spec = StepRequest(task="math", groups=2, n=4, ahead=0, over=3.0, cancel=CancelRule.ALL)
        async for step in run.steps(spec, start=1, count=3, timeout_s=20):
            await step.ack()
        assert not asked.done()

        pump.held_back = set()
        validation = await asked

        assert validation.n_valid == 4


async def test_what_broke_is_drawn_again_as_the_same_member_and_counts_when_it_comes(
    settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """Each member has the seeds of the one it stands for: its prompt, draw 0 and number."""
    broken = {f"{RUN}.v1-1.0.2", f"{RUN}.v1-1.3.0"}
    pump.rewarder = lambda job: None if job in broken else float(row_of(job))

    async with connect(settings, run=RUN) as run:
        validation = await run.validate(a_validation(2), timeout_s=20)

        member = validation.groups[1].members[2]
        assert [result.job for result in member.earlier] == [f"{RUN}.v1-1.0.2", f"{RUN}.v1-1.3.0"]
        assert member.result.job == f"{RUN}.v1-1.7.0"
        assert (member.score, member.why) == (1.0, "")
        assert validation.mean_at_k.value == 0.5
        assert validation.mean_at_k.is_whole
        assert validation.metrics["members_redrawn"] == 1.0
        assert len(validation.results) == 10
        assert validation.sampled_tokens == 8 * 7
        assert len({await seed_of(client, keys, result.job) for result in (*member.earlier, member.result)}) == 1
        await validation.ack()
        assert await leftovers(client, keys) == []


async def test_what_stays_broken_counts_nowhere_and_is_said(settings: QueueSettings, pump: Pump) -> None:
    """Promise 7: never a reward of 0. A prompt with too few valid members has no unbiased pass@k and is left out."""
    pump.rewarder = lambda job: None if job.startswith(f"{RUN}.v1-0.") and row_and_number(job) in ((0, 0), (0, 1)) else 1.0

    async with connect(settings, run=RUN) as run:
        validation = await run.validate(a_validation(2, max_redraws=1), timeout_s=20)

        assert validation.groups[0].scores == (None, None, 1.0, 1.0)
        assert validation.groups[0].members[0].why == "infra_failure: sandbox: gone"
        assert str(validation.mean_at_k) == "1.0000 (6 of 8 members valid, 2 of 2 prompts)"
        assert str(validation.pass_at(3)) == "1.0000 (6 of 8 members valid, 1 of 2 prompts)"
        assert len(validation.groups[0].members[0].earlier) == 1
        assert validation.why_invalid == {"infra_failure: sandbox: gone": 2}


def row_and_number(job: str) -> tuple[int, int]:
    """Which member of a validation of four samples a job is for, drawn the first time or again."""
    _, prompt, draw, number = job.split(".")
    return int(prompt.partition("-")[2]), (int(draw) - 1) % 4 if int(draw) else int(number)


async def test_cancelled_members_are_not_drawn_again(settings: QueueSettings, pump: Pump) -> None:
    """Somebody meant that."""
    pump.hold_all = True

    async with connect(settings, run=RUN) as run:
        asked = asyncio.create_task(run.validate(a_validation(1, 2), timeout_s=20))
        await wait_until(lambda: len(pump._waiting) == 2, "both members are in RUN")
        await run.job(f"{RUN}.v1-0.0.0").cancel(CancelReason.USER)
        pump.hold_all = False
        validation = await asked

        assert [member.why for member in validation.members] == ["cancelled: user", ""]
        assert validation.n_valid == 1


async def test_the_same_prompts_and_seed_have_the_same_seeds_in_each_validation_and_training_has_others(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(3))
        (step,) = [step async for step in run.steps(StepRequest(task="math", groups=2, n=4), count=1, timeout_s=20)]
        one = await run.validate(a_validation(3), timeout_s=20)
        backwards = await run.validate(a_validation(prompts=rows(3)[::-1]), timeout_s=20)
        other = await run.validate(a_validation(3, run_seed=1), timeout_s=20)

        seeds = await seeds_of(client, keys, one)
        assert seeds == (await seeds_of(client, keys, backwards))[::-1]
        flat = [seed for row in seeds for seed in row]
        others = [seed for row in await seeds_of(client, keys, other) for seed in row]
        training = [await seed_of(client, keys, member.job) for group in step.groups for member in group.members]
        assert len({*flat, *others, *training}) == 12 + 12 + 8


async def seeds_of(client: AsyncClient, keys: Keys, validation: Validation) -> list[list[int]]:
    return [[await seed_of(client, keys, member.result.job) for member in group.members] for group in validation.groups]


async def seed_of(client: AsyncClient, keys: Keys, job: str) -> int:
    """Seed of a job's first model call, from what a worker reads of it."""
    h = await QueueAudit(client, keys).job(job)
    claim = Claim("s:run", "1-1", job, h["run"], h["grp"], int(h["n"]), h["task"], "nonce")
    spec = await Bodies(client, keys).spec(Begun(claim, "ok", 1, h["tpl"], int(h["draw"]), incarnation=int(h["inc"])))
    return call_seed(spec, 0)


async def test_sampling_is_its_own(settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys) -> None:
    async with connect(settings, run=RUN) as run:
        validation = await run.validate(a_validation(1, 1), timeout_s=20)

        h = await QueueAudit(client, keys).job(validation.members[0].result.job)
        template = decode(JobTemplate, await ask(client, "GET", keys.template(RUN, h["tpl"])))
        assert template.sampling == SAMPLING.record()


async def test_asked_again_by_the_trainers_next_process_it_goes_on(
    settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    pump.held_back = {f"{RUN}.v1-1.0.0", f"{RUN}.v1-2.0.3"}

    async with connect(settings, run=RUN) as run:
        with pytest.raises(WaitTimeout, match="validation 20"):
            await run.validate(a_validation(), index=20, timeout_s=0.5)
        await wait_until(lambda: len(pump.ended) == 10, "the others have ended")

    async with connect(settings, run=RUN) as run:
        pump.held_back = set()
        validation = await run.validate(a_validation(), index=20, timeout_s=20)

        assert validation.n_valid == 12
        await wait_until(lambda: len(pump.ended) == 12, "the pump has heard that it ended the last")
        assert Counter(pump.ended) == Counter(member.result.job for member in validation.members)
        await validation.ack()
        await validation.ack()
        assert await leftovers(client, keys) == []
        assert await ask(client, "XLEN", keys.results(RUN)) == 0
        with pytest.raises(InvalidRequest, match="was acked"):
            await run.validate(a_validation(), index=20)


async def test_an_index_belongs_to_one_request(settings: QueueSettings, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        await run.validate(a_validation(1, 1), index=3, timeout_s=20)

        with pytest.raises(InvalidRequest, match="was asked for with other prompts"):
            await run.validate(a_validation(2, 1), index=3)
        assert (await run.validate(a_validation(2, 1), timeout_s=20)).index == 1
        assert (await run.validate(a_validation(2, 2), index=2, timeout_s=20)).index == 2
        assert (await run.validate(a_validation(2, 3), timeout_s=20)).index == 4


async def test_a_trainer_that_went_back_validates_anew(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    """The weights that the first validation of step 1 was made with are of a history that was given up."""
    async with connect(settings, run=RUN) as run:
        run.feed(rows(20))
        checkpoint = run.state_dict()
        async for step in run.steps(SPEC, count=1, timeout_s=20):
            await step.ack()
        before = await run.validate(a_validation(2, 1), index=1, timeout_s=20)

    async with connect(settings, run=RUN, resume=checkpoint) as run:
        after = await run.validate(a_validation(2, 1), index=1, timeout_s=20)

        assert {member.result.job for member in before.members}.isdisjoint(member.result.job for member in after.members)


async def test_what_a_history_that_was_given_up_validated_goes(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """Its validation was never acked, so it stood as open, and nobody could ack it any more: each client kept it alive."""
    async with connect(settings, run=RUN) as run:
        checkpoint = run.state_dict()
        run.feed(rows(20))
        async for step in run.steps(SPEC, count=1, timeout_s=20):
            await step.ack()
        await run.validate(a_validation(2, 1), index=1, timeout_s=20)

    async with connect(settings, run=RUN, resume=checkpoint) as run:
        after = await run.validate(a_validation(2, 1), index=1, timeout_s=20)
        await after.ack()
        await wait_until_gone(client, keys)


async def test_what_a_trainer_that_died_in_the_ack_left_is_nobodys_and_goes(
    settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """It had marked the validation, and died before its groups were let go of. Nobody may ask for them again, so the next client drops
    them, or they would be kept alive with the run."""
    async with connect(settings, run=RUN) as run:
        await run.validate(a_validation(2, 2), index=7, timeout_s=20)
        line = (await ask(client, "HGET", keys.validations(RUN), "7")).decode()
        await ask(client, "HSET", keys.validations(RUN), "7", line.replace("open", "acked"))

    async with connect(settings, run=RUN) as run:
        jobs = await run.submit([JobRequest(task="math", prompt={"i": 1})])
        await jobs[0].result(timeout_s=20)
        await wait_until_gone(client, keys)
        assert await leftovers(client, keys) == []


async def wait_until_gone(client: AsyncClient, keys: Keys) -> None:
    async def gone() -> bool:
        return not await leftovers(client, keys)

    await wait_until(gone, "what is left of the validation went")


async def test_a_validation_is_marked_mixed_when_another_version_sampled(
    settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    pump.version_of = lambda job: "1.4" if job.endswith(".1") else "1.5"

    async with connect(settings, run=RUN) as run:
        await run.set_policy_version(5)
        validation = await run.validate(a_validation(2, 2), timeout_s=20)

        assert validation.version == "1.5"
        assert validation.versions == ("1.5", "1.4")
        assert validation.is_mixed
        assert validation.n_valid == 4


async def test_pinned_members_of_another_version_are_drawn_again_while_the_version_stands(
    settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """A server was late to load the weights: the second draw finds it updated."""
    pump.version_of = lambda job: "1.4" if job == f"{RUN}.v1-0.0.1" else "1.5"

    async with connect(settings, run=RUN) as run:
        await run.set_policy_version(5)
        validation = await run.validate(a_validation(2, 2, version="pinned"), timeout_s=20)

        assert validation.n_valid == 4
        assert not validation.is_mixed
        assert len(validation.groups[0].members[1].earlier) == 1


async def test_pinned_members_of_a_newer_version_count_nowhere_once_the_run_moved_on(
    settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """No later draw can bring the old version back: drawing again would only cost tokens."""
    pump.hold_all = True
    pump.version_of = lambda job: "1.6" if job.endswith("0.1") else "1.5"

    async with connect(settings, run=RUN) as run:
        await run.set_policy_version(5)
        asked = asyncio.create_task(run.validate(a_validation(2, 2, version="pinned"), timeout_s=20))
        await wait_until(lambda: len(pump._waiting) == 4, "all members are in RUN")
        await run.set_policy_version(6)
        pump.hold_all = False
        validation = await asked

        assert [group.scores for group in validation.groups] == [(0.0, None), (0.0, None)]
        assert validation.members[1].why == "sampled by version 1.6, pinned to 1.5"
        assert (validation.version, validation.versions, validation.is_mixed) == ("1.5", ("1.5",), False)
        assert validation.metrics["members_redrawn"] == 0.0


async def test_a_run_without_a_version_cannot_be_pinned_to_it(settings: QueueSettings, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        with pytest.raises(InvalidRequest, match="has no policy version"):
            await run.validate(a_validation(version="pinned"))

        pump.version_of = lambda _: "weights-of-monday"
        validation = await run.validate(a_validation(1, 2, version="weights-of-monday"), timeout_s=20)
        assert (validation.version, validation.n_valid) == ("weights-of-monday", 2)


async def test_a_full_queue_is_waited_for_and_then_said(settings: QueueSettings, pump: Pump) -> None:
    pump.hold_all = True
    small = settings.model_copy(update={"max_waiting": 10, "admit_window": 4})

    async with connect(small, run=RUN) as run:
        with pytest.raises(WaitTimeout, match="holds its most of 10"):
            await run.validate(a_validation(8, 4), index=1, timeout_s=0.5)

    async with connect(settings, run=RUN) as run:
        pump.hold_all = False
        assert (await run.validate(a_validation(8, 4), index=1, timeout_s=20)).n_valid == 32


async def test_a_wait_says_how_many_of_its_lane_stand_before_it(
    settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    async with connect(settings, run=RUN) as run:
        await ask(client, "HSET", keys.run(RUN), "paused", 1)
        await run.submit([JobRequest(task="math", prompt={"i": i}) for i in range(5)])
        with pytest.raises(WaitTimeout) as waited:
            await run.validate(a_validation(2, 2), timeout_s=0.2)

        assert waited.value.causes[0] is Cause.RUN_PAUSED
        assert waited.value.why[-1] == "The job waits in the queue of its run behind 0 others"
        assert (await run._reasons.of_job(f"{RUN}.v1-1.0.0"))[-1].what.endswith("behind 2 others")


async def test_what_is_not_acked_lives_on_with_its_groups(settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys) -> None:
    """An ack finds members by the hash of their group: it must live as long as their results do."""
    async with connect(settings, run=RUN) as run:
        validation = await run.validate(a_validation(1, 2), timeout_s=20)
        group = keys.group(validation.members[0].result.record.group)
        for key in (group, keys.job(validation.members[1].result.job)):
            await ask(client, "PEXPIRE", key, 5000)

        await run._keeper._extend_all()

        for key in (group, keys.job(validation.members[1].result.job)):
            assert await ask(client, "PTTL", key) > 86_400_000


async def test_single_results_and_other_validations_do_not_see_it(settings: QueueSettings, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        one, two = await asyncio.gather(
            run.validate(a_validation(2, 1), index=1, timeout_s=20), run.validate(a_validation(3, 1), index=2, timeout_s=20)
        )
        jobs = await run.submit([JobRequest(task="math", prompt={"i": i}, id=f"v1-{i}") for i in range(2)])
        results = [result.job async for result in run.results(jobs, timeout_s=20)]

        assert sorted(results) == [f"{RUN}.v1-0", f"{RUN}.v1-1"]
        await one.ack()
        assert two.n_valid == 3
        assert (await two.members[0].result.grade()).reward == 0.0


async def test_a_trainer_that_was_fenced_off_hears_it(settings: QueueSettings, pump: Pump) -> None:
    pump.hold_all = True
    async with connect(settings, run=RUN) as old:
        asked = asyncio.create_task(old.validate(a_validation(1, 1), timeout_s=30))
        await wait_until(lambda: len(pump._waiting) == 1, "it goes on")
        async with connect(settings, run=RUN):
            with pytest.raises(StaleIncarnation):
                await old.validate(a_validation(1, 1))
            with pytest.raises(StaleIncarnation):
                await asked


@pytest.mark.one_server
async def test_without_await(settings: QueueSettings, pump: Pump) -> None:
    def work() -> None:
        with connect_blocking(settings, run="plain") as run:
            validation = run.validate(a_validation(2, 2), timeout_s=20)
            assert validation.pass_at(2).value == 1.0
            assert validation.groups[1].members[0].result.trajectory().answer == "answer of plain.v1-1.0.0"
            assert validation.groups[0].mean == 0.5
            validation.ack()

    await asyncio.to_thread(work)


@pytest.mark.one_server
async def test_a_killed_server_is_waited_for_and_nothing_is_lost(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(persistence="always")
    settings = QueueSettings(redis_url=server.url, namespace="outage")
    commands = command_client(settings)

    async with connect(settings, run=RUN) as run, pumping(Pump(Scripts(commands, Keys.of_shard("outage", 0)))):
        asked = asyncio.create_task(run.validate(a_validation(20), index=1, timeout_s=60))
        await wait_until(lambda: _has_results(run), "some members have ended")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)

        assert (await asked).n_valid == 80
    await commands.aclose()


@pytest.mark.one_server
async def test_a_server_that_forgot_everything_is_asked_again(make_server: Callable[..., PrivateServer]) -> None:
    """It lost its last writes, or another one took over: units that have not ended are sent again."""
    server = make_server()
    settings = QueueSettings(redis_url=server.url, namespace="outage")
    commands = command_client(settings)
    pump = Pump(Scripts(commands, Keys.of_shard("outage", 0)), hold_all=True)

    async with connect(settings, run=RUN) as run, pumping(pump):
        asked = asyncio.create_task(run.validate(a_validation(3, 2), index=1, timeout_s=60))
        await wait_until(lambda: len(pump._waiting) == 6, "all members are in RUN")
        await ask(
            commands, "DEL", *[pump.scripts.keys.job(f"{RUN}.v1-1.0.{n}") for n in range(2)], pump.scripts.keys.group(f"{RUN}.v1-1.0")
        )
        await run.resubmit_unsettled()
        pump.hold_all = False

        assert (await asked).n_valid == 6
    await commands.aclose()


def _has_results(run: Run) -> bool:
    return len(run._inbox.jobs) > 10


def test_prompts_of_other_writers_have_no_first_member() -> None:
    """Wire: a body of an older writer says nothing of it."""
    body = b"\x00" + msgpack.packb({"id": "e0-1", "data": {}})

    assert decode(Prompt, body).first_member == 0
