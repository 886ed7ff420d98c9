"""Rewards from outside: what awaits one is given out, reports are sent, and a group's hook is asked (ADR 10).

Invariants:
  1. The first report of a job or group stands, whoever sends it; the answer says what became of this one. Sending again changes nothing.
  2. What awaits comes again to a trainer that lost contact or was restarted, until it has ended.
  3. Reports of the last minute are sent again after an outage: a server that keeps its writes for a second may have lost them.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.causes import Reason
from pipeline.codec import decode
from pipeline.errors import DamagedBody, InvalidRequest, NewerMessage
from pipeline.keys import Keys, job_id
from pipeline.messages import Outcome, Prompt, Trajectory
from pipeline.redis_client import AsyncClient, ask
from pipeline.request_errors import shown
from pipeline.scripts.reward_calls import SCORE, Report, ReportAnswer, Reward, RewardScripts
from trainer_client.bodies import BodyStore
from trainer_client.calls import Calls
from trainer_client.errors import BodyMissing
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.logs import Log
from trainer_client.on_loop import OnLoop
from trainer_client.records import AwaitingRecord, HeldRecord

log = Log(__name__)

REPEAT_WINDOW_S = 60.0
HOOKS_AT_ONCE = 16
"""Groups that are with the hook at the same time."""


class Awaiting(OnLoop):
    """A job that awaits its reward."""

    def __init__(self, record: AwaitingRecord, outside: Outside) -> None:
        self.record = record
        self._outside = outside

    @property
    def job(self) -> str:
        """Id of the job."""
        return self.record.job

    @property
    def outcome(self) -> Outcome:
        """What it ends as with a reward: `ok`, or `model_failure` when it hit a limit."""
        return self.record.outcome

    async def trajectory(self) -> Trajectory:
        """What is to be judged. Arrays are read-only views of the bytes that came.

        Raises:
            BodyMissing: the job ended meanwhile and was acked.
            DamagedBody: the bytes are no trajectory.
        """
        return await self._outside.trajectory(self.record)

    async def prompt(self) -> Prompt:
        """The task instance.

        Raises:
            BodyMissing, DamagedBody
        """
        return await self._outside.prompt(self.record.group or self.record.job)

    async def report(self, score: float, components: Mapping[str, float] | None = None) -> ReportAnswer:
        """Reports its reward; see `Run.report_reward`. Refused as `superseded` when another trajectory waits by then."""
        return await self._outside.report(self.record.job, score, components, run_attempt=self.record.run_attempt)

    def __repr__(self) -> str:
        return f"<Awaiting {self.job} {self.outcome}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMember:
    """One member of a held group: it ended with something the policy did, and waits for the hook."""

    number: int
    job: str
    outcome: Outcome
    reward: float | None
    """The task's score, or one that was reported; None = it gets the hook's."""
    components: Mapping[str, float]
    trajectory: Trajectory | None
    """None = its bytes cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A group whose members have all ended, as its hook sees it."""

    id: str
    prompt_id: str
    prompt: Prompt | None
    members: tuple[HeldMember, ...]
    """Those that wait, by number; what infrastructure broke is not among them."""
    want: int
    """Members it was launched with."""


HookValues = Mapping[int, Mapping[str, float]]
"""Components by name, by member. `score` only for members that have none."""
GroupHook = Callable[[HeldGroup], HookValues | Awaitable[HookValues]]


class Outside:
    """Rewards from outside, of one client."""

    def __init__(
        self,
        *,
        run: str,
        incarnation: int,
        client: AsyncClient,
        keys: Keys,
        scripts: RewardScripts,
        inbox: Inbox,
        bodies: BodyStore,
        calls: Calls,
        life: Lifetime,
        why_waiting: Callable[[], Awaitable[Sequence[Reason]]],
    ) -> None:
        self._run = run
        self._incarnation = incarnation
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._inbox = inbox
        self._bodies = bodies
        self._calls = calls
        self._life = life
        self._why_waiting = why_waiting
        self._recent: deque[tuple[float, Report | tuple[str, Mapping[int, Reward]]]] = deque()

    # ---- single rewards

    async def awaiting(self, timeout_s: float | None) -> AsyncIterator[Awaiting]:
        """See `Run.awaiting`."""
        with self._inbox.outside.awaiting_reader() as reader:
            while True:
                while not reader.waiting:
                    await self._life.wait(reader.arrival(), "the next job that awaits a reward", timeout_s, self._why_waiting)
                record = reader.waiting.popleft()
                if self._inbox.outside.awaiting.get(record.job) is record:
                    yield Awaiting(record, self)

    async def report(self, job: str, score: float, components: Mapping[str, float] | None, *, run_attempt: int = 0) -> ReportAnswer:
        """See `Run.report_reward`."""
        if not job.startswith(self._run + "."):
            raise InvalidRequest(f"expected a job of run {self._run!r}, got {shown(job)}", field="job")
        report = Report(job=job, reward=Reward(score=score, components=components or {}), run_attempt=run_attempt)
        [answer] = await self._send([report])
        self._remember(report)
        return answer

    async def _send(self, reports: Sequence[Report]) -> list[ReportAnswer]:
        return await self._calls.make(self._scripts.report_rewards, self._run, self._incarnation, reports)

    def _remember(self, what: Report | tuple[str, Mapping[int, Reward]]) -> None:
        self._recent.append((time.monotonic(), what))
        while self._recent[0][0] < time.monotonic() - REPEAT_WINDOW_S:
            self._recent.popleft()

    async def repeat(self) -> int:
        """Sends the reports of the last minute again; returns how many Redis had lost."""
        lost = 0
        for at, what in list(self._recent):
            if at < time.monotonic() - REPEAT_WINDOW_S:
                continue
            if isinstance(what, Report):
                answers = await self._send([what])
            else:
                answers = [await self._send_group(*what)]
            lost += answers.count(ReportAnswer.ACCEPTED)
        return lost

    # ---- bodies

    async def trajectory(self, record: AwaitingRecord) -> Trajectory:
        key = self._keys.body(record.job, record.run_attempt, "run")
        return decode(Trajectory, await self._body(record.job, "trajectory", key))

    async def prompt(self, unit: str) -> Prompt:
        return decode(Prompt, await self._body(unit, "prompt", self._keys.prompt(unit)))

    async def _body(self, unit: str, name: str, key: str) -> bytes:
        raw = (await self._bodies.fetch([key]))[0]
        if raw is None:
            raise BodyMissing(unit, name, f"{key} is not in Redis: the job ended and was acked, or its time ran out")
        return raw

    # ---- groups

    async def serve(self, hook: GroupHook) -> None:
        """Gives each held group to the hook and reports what it says, until the client ends or the hook fails."""
        room = asyncio.Semaphore(HOOKS_AT_ONCE)

        async def one(record: HeldRecord) -> None:
            async with room:
                if record.group in self._inbox.outside.held and not self._life.stop.is_set():
                    await self._ask_hook(hook, record)

        asked: set[asyncio.Task[None]] = set()
        with self._inbox.outside.held_reader() as reader:
            async with asyncio.TaskGroup() as tasks:
                while not self._life.stop.is_set():
                    arrived = asyncio.Event()
                    reader.arrival().add_done_callback(lambda _, arrived=arrived: arrived.set())  # type: ignore[misc]  # bound now
                    await self._life.pause(None, arrived)
                    while reader.waiting:
                        task = tasks.create_task(one(reader.waiting.popleft()), name=f"hook-{self._run}")
                        asked.add(task)
                        task.add_done_callback(asked.discard)
                for task in asked:
                    task.cancel()  # what is held is offered to the next client

    async def _ask_hook(self, hook: GroupHook, record: HeldRecord) -> None:
        group = await self._held_group(record)
        if group is None:
            return
        if inspect.iscoroutinefunction(hook):
            said = await hook(group)
        else:
            given = await asyncio.to_thread(hook, group)
            said = await given if inspect.isawaitable(given) else given
        rewards = rewards_of(group, said)
        answer = await self._send_group(group.id, rewards)
        self._remember((group.id, rewards))
        if answer is not ReportAnswer.ACCEPTED:
            log.info("hook_not_taken", run=self._run, group=group.id, answer=answer.value)
        self._inbox.outside.group_closed(group.id)

    async def _send_group(self, group: str, members: Mapping[int, Reward]) -> ReportAnswer:
        return await self._calls.make(self._scripts.report_group, self._run, self._incarnation, group, members)

    async def _held_group(self, record: HeldRecord) -> HeldGroup | None:
        """A held group with all that its hook needs; None when none of its members waits any more."""
        waiting = [
            found for member in range(record.want) if (found := self._inbox.outside.awaiting.get(job_id(record.group, member))) is not None
        ]
        if not waiting:
            return None
        raws = await self._bodies.fetch([self._keys.body(found.job, found.run_attempt, "run") for found in waiting])
        members = []
        for found, raw in zip(waiting, raws, strict=True):
            reward, components = await self._reward_so_far(found)
            members.append(
                HeldMember(
                    number=found.member,
                    job=found.job,
                    outcome=found.outcome,
                    reward=reward,
                    components=components,
                    trajectory=self._readable(found.job, raw),
                )
            )
        try:
            prompt = await self.prompt(record.group)
        except (BodyMissing, DamagedBody, NewerMessage) as error:
            log.warning("prompt_unreadable", group=record.group, error=str(error))
            prompt = None
        return HeldGroup(id=record.group, prompt_id=record.prompt, prompt=prompt, members=tuple(members), want=record.want)

    def _readable(self, job: str, raw: bytes | None) -> Trajectory | None:
        try:
            return None if raw is None else decode(Trajectory, raw)
        except (DamagedBody, NewerMessage) as error:
            log.warning("trajectory_unreadable", job=job, error=str(error))
            return None

    async def _reward_so_far(self, record: AwaitingRecord) -> tuple[float | None, Mapping[str, float]]:
        """Of the task, or what was reported since the record was written."""
        if record.reward is not None:
            return record.reward, record.components
        score, parts = await self._calls.make(ask, self._client, "HMGET", self._keys.job(record.job), "aw.rew", "aw.comps")
        if not score:
            return None, record.components
        return float(score), {name: float(value) for name, value in json.loads(parts or b"{}").items() if value is not None}


def rewards_of(group: HeldGroup, said: object) -> dict[int, Reward]:
    """What a hook said, checked.

    Raises:
        InvalidRequest: no map of members to components, a member that does not wait, a `score` for one that has its own, a value that is no
            number.
    """
    if not isinstance(said, Mapping):
        raise InvalidRequest(f"expected a map of member to components, got {shown(said)}", field="group_hook")
    waiting = {member.number: member for member in group.members}
    rewards: dict[int, Reward] = {}
    for number, parts in said.items():
        if number not in waiting:
            raise InvalidRequest(f"expected members {sorted(waiting)} of {group.id}, got {shown(number)}", field="group_hook")
        if not isinstance(parts, Mapping):
            raise InvalidRequest(f"expected components by name for member {number} of {group.id}, got {shown(parts)}", field="group_hook")
        if SCORE in parts and waiting[number].reward is not None:
            raise InvalidRequest(
                f"expected no score for member {number} of {group.id}, which has {waiting[number].reward:g}: the unshaped score stands, "
                "name what the hook adds otherwise",
                field="group_hook",
            )
        rewards[number] = Reward(score=parts.get(SCORE), components={name: value for name, value in parts.items() if name != SCORE})
    return rewards


__all__ = ["Awaiting", "GroupHook", "HeldGroup", "HeldMember", "HookValues", "Outside", "ReportAnswer", "rewards_of"]
