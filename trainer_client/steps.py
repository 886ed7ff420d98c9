"""Steps as a trainer sees them: their groups, members, rewards, numbers; and opening them ahead of their use."""

from __future__ import annotations

import math
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from pipeline.codec import decode, encode
from pipeline.errors import InvalidRequest, QueueFull
from pipeline.keys import Keys, job_id
from pipeline.messages import Outcome, Prompt, Trajectory
from pipeline.requests import StepRequest, bounded_int, template_id
from pipeline.scripts.step_calls import StepScripts
from trainer_client.bodies import BodyStore
from trainer_client.contact import Contact
from trainer_client.errors import BodyMissing
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.progress import Progress
from trainer_client.records import GroupRecord, StepRecord
from trainer_client.results import Result, fetch_trajectories


class Group:
    """One group of a step: the members that count, in their order, and the others."""

    def __init__(self, record: GroupRecord, results: Sequence[Result], bodies: BodyStore, keys: Keys) -> None:
        self.record = record
        self.members = tuple(result for result in results if _counts(record, result))
        """Members in the statistics of the group, by number."""
        self.others = tuple(result for result in results if not _counts(record, result))
        """Members outside the statistics: broken by infrastructure, cancelled, expired."""
        self._bodies = bodies
        self._prompt_key = keys.prompt(record.group)

    @property
    def id(self) -> str:
        return self.record.group

    @property
    def prompt_id(self) -> str:
        """Id of the prompt that it sampled: `e<epoch>-<row>`."""
        return self.record.prompt

    @property
    def rewards(self) -> tuple[float, ...]:
        """Unshaped task score of each of `members`; what failed by the model's doing and got no reward has 0."""
        return tuple(0.0 if result.reward is None else result.reward for result in self.members)

    async def prompt(self) -> Prompt:
        """The task instance.

        Raises:
            BodyMissing: the step was acked.
            DamagedBody: the bytes are no prompt.
        """
        raw = (await self._bodies.fetch([self._prompt_key]))[0]
        if raw is None:
            raise BodyMissing(self.id, "prompt", f"{self._prompt_key} is not in Redis: the step was acked, or its time ran out")
        return decode(Prompt, raw)

    async def fetch(self) -> None:
        """Brings the bytes of all trajectories in few calls."""
        await fetch_trajectories(self.members, self._bodies)

    async def trajectories(self) -> list[Trajectory]:
        """What each of `members` produced.

        Raises:
            DamagedBody, BodyMissing: for the first member whose trajectory cannot be had; `member.trajectory()` gives the others.
        """
        await self.fetch()
        return [await result.trajectory() for result in self.members]

    def __repr__(self) -> str:
        return f"<Group {self.id} {self.record.verdict} rewards={list(self.rewards)}>"


class Step:
    """A step that is complete, or ended short since the prompts did."""

    def __init__(
        self,
        record: StepRecord,
        groups: Sequence[Group],
        counted: Sequence[GroupRecord],
        bodies: BodyStore,
        ack: Callable[[int], Awaitable[None]],
    ) -> None:
        self.record = record
        self.groups = tuple(groups)
        """Groups to train, in the order they were accounted."""
        self.counted = tuple(counted)
        """Records of all groups accounted to this step so far, trained or not."""
        self._bodies = bodies
        self._ack = ack

    @property
    def index(self) -> int:
        return self.record.index

    @property
    def is_short(self) -> bool:
        """Whether it has fewer groups than its target, since no prompt was left."""
        return self.record.is_short

    @property
    def metrics(self) -> dict[str, float]:
        """Flat numbers, the same names in every step."""
        return step_metrics(self)

    async def fetch(self) -> None:
        """Brings the bytes of all trajectories of the step in few calls, so that no later one waits."""
        await fetch_trajectories([result for group in self.groups for result in group.members], self._bodies)

    async def ack(self) -> None:
        """Says that the trainer has what it wants of this step **and of all before it**: bodies and records go. Again: nothing happens."""
        await self._ack(self.index)

    def __repr__(self) -> str:
        return f"<Step {self.index} groups={len(self.groups)}/{self.record.target}{' short' if self.is_short else ''}>"


class StepStream:
    """Opens steps and gives them out in order."""

    def __init__(
        self,
        *,
        run: str,
        incarnation: int,
        progress: Progress,
        scripts: StepScripts,
        inbox: Inbox,
        bodies: BodyStore,
        keys: Keys,
        contact: Contact,
        life: Lifetime,
        on_open: Callable[[], None],
        ack: Callable[[int], Awaitable[None]],
        why_waiting: Callable[[int], Awaitable[Sequence[str]]],
    ) -> None:
        self._run = run
        self._incarnation = incarnation
        self._progress = progress
        self._scripts = scripts
        self._inbox = inbox
        self._bodies = bodies
        self._keys = keys
        self._contact = contact
        self._life = life
        self._on_open = on_open
        self._ack = ack
        self._why_waiting = why_waiting
        self._open: dict[int, StepRequest] = {}
        self._empty: set[int] = set()

    async def stream(self, request: StepRequest, start: int | None, count: int | None, timeout_s: float | None) -> AsyncIterator[Step]:
        """See `Run.steps`."""
        index = self._first(start)
        last = math.inf if count is None else index + count - 1
        while index <= last and index not in self._empty:
            for ahead in range(index, int(min(index + request.ahead, last)) + 1):
                await self._open_step(ahead, request)
            record = await self._wait_for(index, timeout_s)
            if not record.groups:
                await self._end_empty(index, timeout_s)
                return
            yield self._step(record)
            index += 1

    async def reopen(self) -> None:
        """Asks again for the steps that are open, in case Redis lost that they were asked for."""
        for index, request in sorted(self._open.items()):
            await self._ask_for(index, request)

    def close_up_to(self, index: int) -> None:
        """Steps that were acked need not be asked for again."""
        for known in [known for known in self._open if known <= index]:
            del self._open[known]

    def _first(self, start: int | None) -> int:
        if start is None:
            return 1 if self._progress.next_step is None else self._progress.next_step
        bounded_int(start, "start", low=0, high=2**53)
        if self._progress.next_step is not None and start < self._progress.next_step:
            raise InvalidRequest(
                f"run {self._run!r} has acked its steps up to {self._progress.next_step - 1}, got {start}: go on with "
                f"start={self._progress.next_step} or without start, go back with resume=<state of an older checkpoint>, "
                "or begin a run with another id",
                field="start",
            )
        return start

    async def _open_step(self, index: int, request: StepRequest) -> None:
        if index in self._open:
            return
        word = await self._ask_for(index, request)
        if word == "reached":
            self._inbox.accept_older(index)
        self._open[index] = request
        self._on_open()

    async def _ask_for(self, index: int, request: StepRequest) -> str:
        template = request.template()
        body = encode(template)
        while True:
            try:
                async with self._life.watched(needs_open_run=True):
                    return await self._contact.reach(
                        lambda: self._scripts.open_step(
                            self._run, self._incarnation, index, request.spec(), template, template_id(body), body
                        ),
                        stop=self._life.stop,
                    )
            except QueueFull as error:
                await self._life.pause(error.retry_after_s)

    async def _wait_for(self, index: int, timeout_s: float | None) -> StepRecord:
        future = self._inbox.step_future(index)
        return await self._life.wait(future, f"step {index}", timeout_s, lambda: self._why_waiting(index), needs_open_run=True)

    def _step(self, record: StepRecord) -> Step:
        groups = [self._group(group) for group in record.groups]
        counted = [group for group in self._inbox.groups.values() if group.step == record.index]
        return Step(record, groups, counted, self._bodies, self._ack)

    def _group(self, group: str) -> Group:
        record = self._inbox.groups[group]
        results = [self._inbox.jobs[job_id(group, member)] for member in range(record.want)]
        return Group(record, results, self._bodies, self._keys)

    async def _end_empty(self, index: int, timeout_s: float | None) -> None:
        """The prompts have ended: this step and those opened after it have no groups, and their records are nobody's concern."""
        for empty in sorted(known for known in self._open if known >= index):
            record = await self._wait_for(empty, timeout_s)
            self._inbox.set_aside[record.entry] = ("step", str(empty))
            self._inbox.drop("step", str(empty))
            del self._open[empty]
            self._empty.add(empty)
        self._inbox.moved.set()


def _counts(record: GroupRecord, result: Result) -> bool:
    """Whether a member is in the statistics: what the supervisor said, else what its outcome says."""
    member = result.record.member
    if member < len(record.values):
        return record.values[member] is not None
    return result.outcome in (Outcome.OK, Outcome.MODEL_FAILURE)


def step_metrics(step: Step) -> dict[str, float]:
    """The numbers of one step: `groups_*` counts, `tokens_*` sampled tokens by what became of them, `reward_*` over trained members,
    `sampled_tokens_*` a trained member, `seconds_*` mean a trained member and stage."""
    record = step.record
    members = [result.record for group in step.groups for result in group.members]
    rewards = [reward for group in step.groups for reward in group.rewards]
    judged = [group for group in step.counted if group.verdict.value in ("informative", "filtered")]
    lengths = sorted(result.sampled_tokens for result in members)
    numbers = {
        "groups_trained": float(len(step.groups)),
        "groups_target": float(record.target),
        "groups_filtered": float(record.filtered),
        "groups_dropped": float(record.dropped),
        "groups_dead": float(record.dead),
        "groups_cancelled": float(record.cancelled),
        "groups_surplus": float(record.surplus),
        "groups_redundant": float(record.redundant),
        "groups_filtered_share": record.filtered / max(1, record.filtered + len(step.groups)),
        "members_trained": float(len(members)),
        "members_missing": float(sum(len(group.others) for group in step.groups)),
        "reward_mean": statistics.fmean(rewards) if rewards else 0.0,
        "reward_mean_all": statistics.fmean(group.mean for group in judged if group.mean is not None)
        if any(group.mean is not None for group in judged)
        else 0.0,
        "tokens_kept": float(record.tokens_kept),
        "tokens_filtered": float(record.tokens_filtered),
        "tokens_cancelled": float(record.tokens_cancelled),
        "tokens_failed": float(record.tokens_failed),
        "sampled_tokens_mean": statistics.fmean(lengths) if lengths else 0.0,
        "sampled_tokens_max": float(lengths[-1]) if lengths else 0.0,
        "turns_mean": statistics.fmean(result.turns for result in members) if members else 0.0,
        "took_s": record.took_s,
    }
    for stage in ("init", "run", "eval", "total"):
        numbers[f"seconds_{stage}_mean"] = statistics.fmean(result.seconds.get(stage, 0.0) for result in members) if members else 0.0
    return numbers
