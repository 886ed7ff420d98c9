"""Plays the events of a dapo case on the product.

The trainer keeps no step open ahead: it asks for a step when an event needs one, so weights that come right after `next_step` belong to the
training of the step before. Groups that a part of the story speaks of are all pushed when their step is asked for, as the dispatcher of the
story had them in flight together.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field

from pipeline.codec import encode
from pipeline.errors import RollstreamError
from pipeline.keys import Keys, group_id, job_id
from pipeline.messages import Outcome, Prompt, Settlement, StopReason
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from pipeline.supervisor import ledger
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.loading import LedgerReader, UnreadableGroup
from pipeline.supervisor.loop import Supervisor
from pipeline.testing.wait import WaitedTooLong, wait_until
from tests.cases.areas.dapo_config import TIME_SCALE, request_of
from tests.cases.areas.dapo_fleet import DapoFleet
from tests.cases.areas.dapo_outcome import Batch, DapoOutcome, TrainedGroup
from tests.cases.case import BadCase, Case, Difference, Json
from trainer_client import Run, Step, StepRequest, connect

RUN = "case"
PERIOD_S = 0.2
ENDS = ("result", "failed")
BORDERS = ("next_step", "take_batch")


async def play(case: Case, redis_url: str) -> DapoOutcome:
    """All events of a case, in order."""
    settings = QueueSettings(redis_url=redis_url, namespace="c" + secrets.token_hex(7))
    config, events = case.input["config"], case.input["events"]
    outcome, started = DapoOutcome(), time.monotonic()
    keys = Keys.of_shard(settings.namespace, 0)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aclosing(command_client(settings)))
        run = await stack.enter_async_context(connect(settings, run=RUN))
        supervisors = await stack.enter_async_context(Supervisors(settings))
        await _redis_was_there(client, keys)
        story = Story(config, events, request_of(config), run, client, keys, supervisors, outcome)
        try:
            await story.play(most_batches=len(case.expect.get("batches", ())))
        except RollstreamError as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.worker_alive = supervisors.are_alive
        await story.close()
    outcome.seconds = time.monotonic() - started
    return outcome


async def _redis_was_there(client: AsyncClient, keys: Keys) -> None:
    """In the story it was there all along; the first janitor takes it for one that was away, and judges no deadline for a lease."""
    janitor = keys.key("janitor")
    await wait_until(lambda: ask(client, "HEXISTS", janitor, "quiet_until"), "a janitor looked")
    await ask(client, "HSET", janitor, "quiet_until", 0)


class Supervisors:
    """One supervisor, and after it was killed another."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._started = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Supervisors:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._kill()

    @property
    def are_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def restart(self) -> None:
        """The supervisor is gone in the middle of whatever it does; another one starts."""
        await self._kill()
        self._start()

    def _start(self) -> None:
        self._started += 1
        supervisor = Supervisor(self._settings, name=f"s{self._started}", period_s=PERIOD_S)
        self._task = asyncio.create_task(supervisor.run(asyncio.Event()), name="supervisor")

    async def _kill(self) -> None:
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)


@dataclass
class Story:
    """One run, and how far its story is."""

    config: Json
    events: Sequence[Json]
    request: StepRequest
    run: Run
    client: AsyncClient
    keys: Keys
    supervisors: Supervisors
    outcome: DapoOutcome
    _at: int = 0
    _prompts: dict[str, str] = field(default_factory=dict)
    """Group of the case -> id of its prompt."""
    _step: asyncio.Task[Step] | None = None

    def __post_init__(self) -> None:
        self._steps = aiter(self.run.steps(self.request, start=1))
        self._fleet = DapoFleet(Scripts(self.client, self.keys))
        self._scripts = StepScripts(self.client, self.keys)
        self._reader = LedgerReader(self.client, self.keys)
        self._begun_before = 0

    async def play(self, *, most_batches: int) -> None:
        """Goes through the events, then takes what is complete."""
        if "prompts" in self.config:
            self.run.feed([{"question": str(prompt)} for prompt in self.config["prompts"]])
        while self._at < len(self.events):
            events = self._together()
            await self._happens(events)
            self._at += len(events)
        await self._needs_step()
        await self._take()
        while len(self.outcome.batches) < most_batches and not self.outcome.prompts_ended:
            taken = len(self.outcome.batches)
            await self._needs_step()
            await self._take()
            if len(self.outcome.batches) == taken:
                break
        await self._conclude()

    async def close(self) -> None:
        """Waits for nothing any more."""
        if self._step is not None:
            self._step.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration, RollstreamError):
                await self._step

    # ---- events

    def _together(self) -> list[Json]:
        """The next event, and with it those of the same time."""
        first = self.events[self._at]
        found = [first]
        if first["ev"] in ENDS and first.get("t") is not None:
            for event in self.events[self._at + 1 :]:
                if event["ev"] not in ENDS or event.get("t") != first["t"]:
                    break
                found.append(event)
        return found

    async def _happens(self, events: Sequence[Json]) -> None:
        event = events[0]
        match event["ev"]:
            case "weights":
                await self.run.set_policy_version(int(event["version"]))
            case "result" | "failed":
                await self._needs_step()
                await self._end(events)
            case "next_step" | "take_batch":
                await self._needs_step()
                await self._take()
            case "dispatch":
                await self._needs_step()
            case "restart_supervisor":
                self._begun_before = len(self._fleet.begun)
                await self.supervisors.restart()
            case "expect_dispatch":
                await self._expect_dispatch(int(event["prompt_index"]))
            case "expect_next_prompt":
                await self._expect_next(int(event["prompt_index"]))
            case "data_exhausted":
                await self._needs_step()
                await self._scripts.end_prompts(RUN, self.run.incarnation)
            case "query_dispatch":
                await self._needs_step()
                await self._query_dispatch()
            case "wait":
                await self._needs_step()
                await self._fleet.carry()
                with suppress(WaitedTooLong):
                    await wait_until(self._nothing_open, "no group is open", timeout_s=float(event["s"]) * TIME_SCALE)
            case other:
                raise BadCase(f"nothing is known of the event {other!r}")
        await self._rest()

    async def _end(self, events: Sequence[Json]) -> None:
        await self._fleet.carry()
        ends: dict[str, Settlement] = {}
        for event in events:
            job = await self._job(str(event["group"]), int(event["rollout"]))
            if event["ev"] == "result":
                ends[job] = await self._settlement(event)
            elif (why := str(event.get("why", "broken"))) in set(StopReason):
                ends[job] = Settlement(outcome=Outcome.MODEL_FAILURE, reward=event.get("reward"), stop=why, reason=why, sampled_tokens=3)
            elif not await self._fleet.fail(job, why):
                self.outcome.reported.add("late_report")
        if await self._fleet.end(ends):
            self.outcome.reported.add("late_report")

    async def _settlement(self, event: Json) -> Settlement:
        reward = event.get("reward")
        version = event.get("start_version")
        label = self.run.policy_version if version is None else f"{self.run.incarnation}.{version}"
        return Settlement(
            outcome=Outcome.OK,
            reward=None if reward is None else float(reward),
            components=event.get("components", {}),
            stop=str(event.get("stop", StopReason.FINISHED.value)),
            sampled_tokens=3,
            total_tokens=8,
            first_version=label,
            last_version=label,
        )

    async def _query_dispatch(self) -> None:
        """How many groups are begun when prompts are there in plenty."""
        before = len(await self._reader.flying(RUN))
        await self._push([f"more-{number}" for number in range(4 * self.request.groups)])
        await self._rest()
        self.outcome.new_groups = len(await self._reader.flying(RUN)) - before

    async def _expect_dispatch(self, index: int) -> None:
        """The members of one group of a prompt can be had by workers, each once, and of no other."""
        await self._fleet.carry()
        begun = self._fleet.begun[self._begun_before :]
        self._begun_before = len(self._fleet.begun)
        wanted = [job_id(group_id(RUN, f"i{index}", 0), member) for member in range(self.request.n)]
        if sorted(begun) == sorted(wanted):
            self.outcome.redispatched.append(index)
        else:
            self.outcome.unmet.append(Difference(f"given out after the restart, of prompt {index}", wanted, begun))

    async def _expect_next(self, index: int) -> None:
        """With this prompt and those after it in the reserve, it is the next to be launched."""
        before = {group.id for group in await self._reader.flying(RUN)}
        await self._push([f"i{number}" for number in range(index, index + 3)])
        await self._rest()
        launched = [group.id for group in await self._reader.flying(RUN) if group.id not in before]
        first = min(launched, key=lambda name: int(name.split(".")[1][1:])) if launched else None
        if first != group_id(RUN, f"i{index}", 0):
            self.outcome.unmet.append(Difference("next prompt", index, launched))

    # ---- the trainer

    async def _needs_step(self) -> None:
        """Asks for the next step when none is asked for, with the groups that the story speaks of until it is taken."""
        if self._step is not None or self.outcome.prompts_ended:
            return
        groups = list(self.config.get("jobs_running", ())) if not self._prompts else []
        for event in self.events[self._at :]:
            if event["ev"] in BORDERS and event is not self.events[self._at]:
                break
            if "prompt_index" in event and event["ev"] == "dispatch":
                self._prompts[str(event["group"])] = f"i{event['prompt_index']}"
                await self._push([f"i{event['prompt_index']}"])
            elif "group" in event:
                groups.append(str(event["group"]))
        fresh = [group for group in dict.fromkeys(groups) if group not in self._prompts]
        for group in fresh:
            self._prompts[group] = f"g{len(self._prompts)}"
        await self._push([self._prompts[group] for group in fresh])
        self._step = asyncio.ensure_future(anext(self._steps))
        await wait_until(self._is_asked_for, "the step is asked for")
        await self._rest()

    async def _is_asked_for(self) -> bool:
        assert self._step is not None
        view = await self._reader.run(RUN)
        return self._step.done() or (view is not None and bool(view.steps))

    async def _take(self) -> None:
        """Takes the step when it is complete, and lets go of it."""
        await self._rest()
        if self._step is None or not await self._is_over():
            return
        try:
            step = await self._step
        except StopAsyncIteration:
            self.outcome.prompts_ended, self._step = True, None
            return
        self._step = None
        names = {prompt: group for group, prompt in self._prompts.items()}
        groups = [
            TrainedGroup(
                names.get(group.prompt_id, group.prompt_id),
                [member.record.member for member in group.members],
                list(group.rewards),
                [member.loss for member in group.members],
                group.is_stale,
            )
            for group in step.groups
        ]
        self.outcome.batches.append(Batch(groups, step.is_short))
        await step.ack()

    async def _is_over(self) -> bool:
        """Whether the step that is asked for has ended; the client then has it in a moment."""
        view = await self._reader.run(RUN)
        if view is None or view.steps:
            return False
        assert self._step is not None
        await asyncio.wait([self._step], timeout=10.0)
        return self._step.done()

    # ---- how things stand

    async def _rest(self) -> None:
        """Waits until the supervisor has nothing to do and workers have ended what they were told to."""
        await wait_until(self._is_at_rest, "the supervisor has nothing to do")

    async def _is_at_rest(self) -> bool:
        if await self._fleet.obey():
            return False
        view = await self._reader.run(RUN)
        if view is None:
            return False
        listed = (await self._reader.closed(1000)).get(RUN, [])
        closed = [group for group in (await self._reader.groups(listed)).values() if not isinstance(group, UnreadableGroup)]
        busy = ledger.account(view, closed) or ledger.reached(view) or ledger.launch(view)
        again = await self._reader.run(RUN)
        return not busy and again is not None and again.basis == view.basis and not await self._fleet.obey()

    async def _nothing_open(self) -> bool:
        await self._fleet.obey()
        states = [await ask(self.client, "HGET", self.keys.group(group_id(RUN, prompt, 0)), "st") for prompt in self._prompts.values()]
        return b"open" not in states

    async def _job(self, group: str, member: int) -> str:
        """The job of a member, of the draw that is in flight, else of the last one."""
        mark = await ask(self.client, "HGET", self.keys.prompt_marks(RUN), self._prompts[group])
        state, _, draw, *_ = mark.decode().split()
        last = int(draw) - (state == "reserve" and int(draw) > 0)
        return job_id(group_id(RUN, self._prompts[group], last), member)

    async def _push(self, prompts: Sequence[str]) -> None:
        await self._scripts.push_prompts(
            RUN, self.run.incarnation, [(name, encode(Prompt(id=name, data={"question": name}))) for name in prompts]
        )

    async def _conclude(self) -> None:
        """What stands in Redis of the groups of the case; only of the first draw, since later ones are none of its story."""
        names = {group_id(RUN, prompt, 0): group for group, prompt in self._prompts.items()}
        steps = [word.decode() for word in await ask(self.client, "ZRANGE", self.keys.steps(RUN), 0, -1)]
        for step in [*steps, "next"]:
            for group, line in (await ask(self.client, "HGETALL", self.keys.step_groups(RUN, step))).items():
                if (name := names.get(group.decode())) is not None:
                    verdict, why, *_ = line.decode().split("|")
                    self.outcome.verdicts[name] = Verdict(verdict), why
                    if verdict != Verdict.INFORMATIVE and "expired" in why:
                        self.outcome.reported.add("group_timeout")
        for _, fields in await ask(self.client, "XRANGE", self.keys.cancel, "-", "+"):
            if fields[b"kind"] == b"group" and fields[b"why"] != b"deadline":
                for group in fields[b"ids"].decode().split():
                    await self._note_cancelled(group, names.get(group))
        marks = await ask(self.client, "HGETALL", self.keys.prompt_marks(RUN))
        for prompt, mark in marks.items():
            state, _, draw, *_ = mark.decode().split()
            if state == "flying" and prompt.startswith(b"i"):
                known = await ask(self.client, "EXISTS", self.keys.group(group_id(RUN, prompt.decode(), int(draw))))
                if not known:
                    self.outcome.lost.append(int(prompt[1:]))

    async def _note_cancelled(self, group: str, name: str | None) -> None:
        """A cancelled group: all members that had not ended are settled by now."""
        for member in range(self.request.n):
            job = job_id(group, member)
            if job not in self._fleet.ended:
                state = await ask(self.client, "HGET", self.keys.job(job), "st")
                if state not in (None, b"done"):
                    self.outcome.unmet.append(Difference(f"{job} is settled", "done", str(state)))
                elif name is not None:
                    self.outcome.cancelled.append((name, member))
