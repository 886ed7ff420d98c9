"""The inbox: everything once, in whatever order and however often it is read."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.causes import Cause, Reason
from pipeline.keys import Keys, job_id
from pipeline.messages import JobResult
from pipeline.supervisor.actions import Verdict
from tests.unit.trainer_client.run_records import a_closed_group, a_job_record, a_step_record
from trainer_client.bodies import BodyStore
from trainer_client.contact import Contact
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.records import GroupRecord, Note, Record, StepRecord
from trainer_client.results import Result

_entries = itertools.count(1)


def entry() -> str:
    return f"{next(_entries)}-0"


def a_job(job: str, *, group: str = "", member: int = 0, reward: float = 1.0) -> JobResult:
    return a_job_record(job, entry=entry(), group=group, member=member, reward=reward)


def a_group(
    prompt: str, *, step: int | None = 1, verdict: Verdict = Verdict.INFORMATIVE, want: int = 2, incarnation: int = 1
) -> GroupRecord:
    return a_closed_group(
        verdict, entry=entry(), group=f"r.{prompt}.0", prompt=prompt, step=step, want=want, valid=want, incarnation=incarnation
    )


def a_step(index: int, *groups: str, incarnation: int = 1) -> StepRecord:
    return a_step_record(entry=entry(), index=index, groups=groups, incarnation=incarnation)


def members(group: GroupRecord) -> list[JobResult]:
    return [a_job(job_id(group.group, member), group=group.group, member=member) for member in range(group.want)]


def take_all(inbox: Inbox, records: Sequence[Record]) -> None:
    for record in records:
        inbox.take(record)


class Late(list[str]):
    """Groups that were told late."""

    def __call__(self, record: GroupRecord) -> None:
        self.append(record.group)


@pytest.fixture
def late() -> Late:
    return Late()


@pytest.fixture
def inbox(late: Late) -> Inbox:
    """An inbox whose results have no Redis behind them; nothing here asks for a body."""
    bodies = BodyStore.__new__(BodyStore)

    async def no_ack(_: object) -> None:
        raise AssertionError("nothing here acks")

    return Inbox(1, lambda record: Result(record, bodies, Keys("{t:0}"), no_ack), late)


async def test_a_job_is_given_to_all_who_wait_and_to_those_who_come_later(inbox: Inbox) -> None:
    early = inbox.job_future("r.a")

    inbox.take(a_job("r.a"))

    assert (await early) is (await inbox.job_future("r.a"))


async def test_single_results_come_to_each_reader_once_in_order_and_members_of_groups_do_not(inbox: Inbox) -> None:
    inbox.take(a_job("r.a"))
    with inbox.singles() as reader:
        records = [a_job("r.b"), a_job("r.g.0.0", group="r.g.0"), a_job("r.c")]
        for record in [*records, *records]:
            inbox.take(record)

        assert [result.job for result in reader.waiting] == ["r.a", "r.b", "r.c"]


async def test_a_step_is_given_out_when_all_of_it_is_here_in_any_order(inbox: Inbox) -> None:
    groups = [a_group("e0-1"), a_group("e0-2")]
    records: list[Record] = [a_step(1, *(group.group for group in groups)), *groups, *(job for group in groups for job in members(group))]
    random.Random(5).shuffle(records)
    future = inbox.step_future(1)

    for record in records:
        assert not future.done()
        inbox.take(record)

    assert (await future).index == 1
    assert inbox.missing(await future) == []


async def test_a_step_of_an_earlier_incarnation_counts_only_when_the_ledger_says_so(inbox: Inbox) -> None:
    group = a_group("e0-1", incarnation=0)
    take_all(inbox, [*members(group), group, a_step(1, group.group, incarnation=0)])
    future = inbox.step_future(1)
    assert not future.done()

    inbox.accept_older(1)

    assert (await future).incarnation == 0


async def test_a_record_of_before_the_trainer_went_back_is_not_the_one_that_the_ledger_speaks_of(inbox: Inbox) -> None:
    """A stream that is read from its beginning has it before the one of the incarnation that did the step anew and died; the ledger said
    meanwhile that the step stands, and the lost one was given out: its prompts were trained twice, and those of the other never."""
    inbox.base = 2
    lost, stands = a_group("e0-1", incarnation=1), a_group("e0-2", incarnation=2)
    future = inbox.step_future(1)

    inbox.accept_older(1)
    take_all(inbox, [*members(lost), lost, a_step(1, lost.group, incarnation=1)])

    assert not future.done()
    take_all(inbox, [*members(stands), stands, a_step(1, stands.group, incarnation=2)])
    assert (await future).groups == (stands.group,)


async def test_the_record_of_a_step_that_was_done_anew_replaces_the_older_one(inbox: Inbox) -> None:
    older, newer = a_step(1, incarnation=0), a_step(1)

    inbox.take(older)
    inbox.take(newer)

    assert inbox.set_aside == {older.entry: ("step", "1")}
    assert await inbox.step_future(1) == newer


async def test_what_an_ack_lets_go_of(inbox: Inbox) -> None:
    here = [a_group("e0-1"), a_group("e0-2", verdict=Verdict.FILTERED)]
    later = a_group("e0-4", step=2)
    steps_here = [a_step(1, here[0].group), a_step(2, later.group)]
    take_all(inbox, [*here, later, *steps_here])

    groups, steps = inbox.up_to(1)

    assert (groups, steps) == (here, steps_here[:1])


async def test_what_was_acked_does_not_come_back(inbox: Inbox, late: Late) -> None:
    group, single = a_group("e0-1"), a_job("r.a")
    first, second = members(group)
    step = a_step(1, group.group)
    records: list[Record] = [single, first, second, group, step]
    for record in records:
        inbox.take(record)
    inbox.begin_ack(1)
    inbox.drop("job", "r.a")
    inbox.drop("group", group.group)
    inbox.drop("step", "1")

    for record in records:
        inbox.take(record)

    assert (inbox.jobs, inbox.groups, inbox.steps) == ({}, {}, {})
    assert inbox.set_aside == {
        single.entry: ("job", "r.a"),
        first.entry: ("job", first.job),
        second.entry: ("job", second.job),
        group.entry: ("group", group.group),
        step.entry: ("step", "1"),
    }
    assert late == [group.group]


async def test_a_group_accounted_to_a_step_that_was_acked_is_dropped_with_its_members(inbox: Inbox, late: Late) -> None:
    group = a_group("e0-9", verdict=Verdict.CANCELLED)
    inbox.begin_ack(1)
    for job in members(group):
        inbox.take(job)

    inbox.take(group)

    assert inbox.jobs == {}
    assert inbox.set_aside == {group.entry: ("group", group.group)}
    assert late == [group.group]


async def test_a_group_of_no_step_is_dropped_and_its_prompt_told(inbox: Inbox, late: Late) -> None:
    group = a_group("e0-3", step=None, verdict=Verdict.FILTERED)
    for job in members(group):
        inbox.take(job)

    inbox.take(group)

    assert (inbox.groups, inbox.jobs, late) == ({}, {}, [group.group])
    assert inbox.set_aside == {group.entry: ("group", group.group)}


async def test_a_step_that_ended_empty_takes_its_filtered_groups_with_it_also_those_to_come(inbox: Inbox, late: Late) -> None:
    early, after = (a_group(prompt, step=3, verdict=Verdict.FILTERED) for prompt in ("e0-1", "e0-2"))
    step = a_step(3)
    take_all(inbox, [*members(early), early, step])

    inbox.drop_empty(3)
    take_all(inbox, [*members(after), after])

    assert (inbox.steps, inbox.groups, inbox.jobs, late) == ({}, {}, {}, [early.group, after.group])
    assert set(inbox.set_aside) == {step.entry, early.entry, after.entry}


async def test_a_second_end_of_an_unread_job_is_the_one_whose_bodies_are_there(inbox: Inbox) -> None:
    inbox.take(a_job("r.a", reward=0.0))
    result = await inbox.job_future("r.a")

    inbox.take(a_job("r.a", reward=1.0))

    assert (len(inbox.jobs), result.reward) == (1, 1.0)


async def test_a_second_end_of_a_job_that_was_read_changes_nothing(inbox: Inbox) -> None:
    inbox.take(a_job("r.a", reward=0.0))
    result = await inbox.job_future("r.a")
    result.put(result.trajectory_key, b"read")

    inbox.take(a_job("r.a", reward=1.0))

    assert result.reward == 0.0


async def test_a_note_wakes_the_feed_and_is_dropped(inbox: Inbox) -> None:
    inbox.take(Note("9-0", "need_prompts"))

    assert inbox.moved.is_set()
    assert inbox.set_aside == {"9-0": ("step", "need_prompts")}


async def test_nobody_who_gave_up_waiting_is_kept(inbox: Inbox) -> None:
    for_job, for_step = inbox.job_future("r.a"), inbox.step_future(1)

    for_job.cancel()
    for_step.cancel()
    await asyncio.sleep(0)

    assert (inbox._job_waiters, inbox._step_waiters) == ({}, {})


@pytest.mark.parametrize("seed", range(20))
async def test_reading_the_stream_again_and_again_gives_each_thing_once(seed: int, inbox: Inbox) -> None:
    """A reader that lost contact reads from the beginning: any prefix, any number of times."""
    groups = [a_group(f"e0-{i}", step=1 + i // 2) for i in range(6)]
    records: list[Record] = [a_job(f"r.s{i}") for i in range(5)]
    for index in (1, 2, 3):
        for group in groups[2 * index - 2 : 2 * index]:
            records += [*members(group), group]
        records.append(a_step(index, *(group.group for group in groups[2 * index - 2 : 2 * index])))
    source = random.Random(seed)
    steps = [inbox.step_future(index) for index in (1, 2, 3)]

    with inbox.singles() as reader:
        for upto in [*(source.randrange(len(records)) for _ in range(6)), len(records)]:
            for record in records[:upto]:
                inbox.take(record)

        assert [result.job for result in reader.waiting] == [f"r.s{i}" for i in range(5)]
    assert [(await step).index for step in steps] == [1, 2, 3]
    assert (len(inbox.jobs), len(inbox.groups), len(inbox.steps), inbox.set_aside) == (17, 6, 3, {})


async def test_a_client_that_ends_ends_every_wait_with_its_reason() -> None:
    life = Lifetime("r")
    contact = Contact("r", patience_s=1.0)
    waits = [asyncio.ensure_future(life.wait(_never(), "nothing", None, _why)) for _ in range(3)]
    await asyncio.sleep(0)

    life.end(ConnectionAbortedError("fenced"))

    for wait in waits:
        with pytest.raises(ConnectionAbortedError, match="fenced"):
            await wait
    with pytest.raises(ConnectionAbortedError):
        life.check()
    assert contact.outage == ""


def _never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def _why() -> list[Reason]:
    return [Reason(Cause.IN_PROGRESS, "because")]


async def test_what_the_stream_has_no_more_is_forgotten_unless_it_was_given(inbox: Inbox) -> None:
    """As after a failover that lost a window: step 1 was given out before it, step 2 was read and not given out."""
    had, early = a_group("e0-1"), a_group("e0-2", step=2)
    take_all(inbox, [*members(had), had, a_step(1, had.group), *members(early), early, a_step(2, early.group)])
    inbox.handed.add(await inbox.step_future(1), inbox.accounted_to(1))

    inbox.distrust()
    waiting = inbox.step_future(2)
    assert not waiting.done()
    inbox.forget_lost(frozenset())

    assert (list(inbox.groups), list(inbox.steps)) == ([had.group], [1])
    assert list(inbox.jobs) == [job_id(had.group, 0), job_id(had.group, 1)]
    inbox.trust(inbox.readings)
    anew = a_group("e0-7", step=2)
    take_all(inbox, [*members(anew), anew, a_step(2, anew.group)])
    assert (await waiting).groups == (anew.group,)


async def test_a_group_that_joins_a_step_which_was_given_out_without_it_is_kept_for_a_later_one(inbox: Inbox, late: Late) -> None:
    """The trainer let go of step 1. A master that had lost it lets another group join it: it is told, and not dropped as trained."""
    had, other = a_group("e0-1"), a_group("e0-7", step=1)
    take_all(inbox, [*members(had), had, a_step(1, had.group)])
    inbox.handed.add(await inbox.step_future(1), inbox.accounted_to(1))
    inbox.begin_ack(1)

    inbox.take(other)

    assert (late, inbox.set_aside) == ([], {})
    inbox.take_back((), (other.group,))  # the ledger was restored
    anew = a_group("e0-7", step=2)
    take_all(inbox, [*members(anew), anew, a_step(2, anew.group)])
    assert (await inbox.step_future(2)).groups == (anew.group,)


async def test_such_a_group_is_nobodys_when_the_step_stands(inbox: Inbox, late: Late) -> None:
    had, other = a_group("e0-1"), a_group("e0-7", step=1)
    take_all(inbox, [*members(had), had, a_step(1, had.group)])
    inbox.handed.add(await inbox.step_future(1), inbox.accounted_to(1))
    inbox.begin_ack(1)
    inbox.take(other)

    inbox.end_doubts()

    assert late == [other.group]
    assert inbox.set_aside == {other.entry: ("group", other.group)}


async def test_a_step_that_has_a_group_of_one_that_was_given_waits_until_the_ledger_was_compared(inbox: Inbox) -> None:
    """The trainer trains on step 1 and stood still in it. A master that had lost that step was quick: its group joined step 2, which was
    reached. The stream is read before the ledger is compared: step 2 was given out in between, with a group that the trainer had."""
    had, other = a_group("e0-1"), a_group("e0-2", step=2)
    take_all(inbox, [*members(had), had, a_step(1, had.group)])
    inbox.handed.add(await inbox.step_future(1), inbox.accounted_to(1))
    waiting = inbox.step_future(2)

    inbox.distrust()
    joined = replace(had, step=2, entry=entry())
    step = a_step(2, had.group, other.group)
    take_all(inbox, [*members(joined), joined, *members(other), other, step])
    inbox.trust(inbox.readings)  # a comparison that began too early
    inbox.forget_lost({step.entry, joined.entry, other.entry, *(result.record.entry for result in inbox.jobs.values())})

    assert not waiting.done()
    inbox.take_back({2}, {other.group})
    inbox.trust(inbox.readings)
    assert not waiting.done()
    anew = replace(other, entry=entry())
    take_all(inbox, [*members(anew), anew, a_step(2, anew.group)])
    assert (await waiting).groups == (other.group,)
