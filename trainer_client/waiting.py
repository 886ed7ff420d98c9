"""Why nothing comes: what stands in the way of a job or a step, as far as Redis tells. For people, in sentences; nothing decides on it.

Workers are told by their name locks, which lapse within a lease of their death. A supervisor is told by what it leaves undone: closed
groups that nobody accounts, a reserve that nobody draws from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from pipeline.errors import BrokerError
from pipeline.inference_pool import InferencePool, why_waiting
from pipeline.keys import VALIDATION_LANE, Keys, validation_serial
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.ledger import BROKEN_IN_A_ROW, PROBE_EVERY_MS
from pipeline.supervisor.run_account import texts
from trainer_client.contact import Contact
from trainer_client.inbox import Inbox

ANNOUNCED_S = 30.0
"""A supervisor says every few seconds which policies it knows."""
UNACCOUNTED_S = 5.0
"""A supervisor accounts a closed group within a second or two."""


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage of a shard."""

    stage: Stage
    workers: int
    """Live processes that read it."""
    waiting: int
    """Entries that no worker has."""
    held: int
    """Entries that a worker has."""


class WaitReasons:
    """Looks for reasons in one run.

    Args:
        inbox: what the asking client has read of the results; None = who asks is no trainer.
        contact: whether Redis answers that client.
    """

    def __init__(
        self,
        run: str,
        client: AsyncClient,
        keys: Keys,
        inbox: Inbox | None = None,
        contact: Contact | None = None,
        *,
        namespace: str,
        max_unread: int,
    ) -> None:
        self._run = run
        self._namespace = namespace
        self._max_unread = max_unread
        self._client = client
        self._keys = keys
        self._inbox = inbox
        self._contact = contact

    async def of_run(self) -> list[str]:
        """What stands in the way of the run as a whole."""
        return await self._look(job="", step=None)

    async def of_job(self, job: str) -> list[str]:
        """What stands in the way of one job."""
        return await self._look(job=job, step=None)

    async def of_step(self, index: int) -> list[str]:
        """What stands in the way of one step."""
        return await self._look(job="", step=index)

    async def stages(self) -> list[StageState]:
        """The stages of the shard, their lanes and classes together."""
        known = {text.decode() for text in await ask(self._client, "SMEMBERS", self._keys.key("streams"))}
        known |= {self._keys.short(self._keys.stage_stream(stage)) for stage in Stage}
        for name in await ask(self._client, "SMEMBERS", self._keys.key("classes")):
            known.add(self._keys.short(self._keys.stage_stream(Stage.INIT, capability=name.decode())))
        return [await self._stage(stage, [short for short in known if short.split(":")[1] == stage.value]) for stage in Stage]

    async def _look(self, *, job: str, step: int | None) -> list[str]:
        if self._contact is not None and self._contact.outage:
            return [self._contact.outage[0].upper() + self._contact.outage[1:]]
        try:
            run = texts(await ask(self._client, "HGETALL", self._keys.run(self._run)))
            reasons = self._run_reasons(run)
            stages = await self.stages()
            if job:
                reasons += await self._job_reasons(job, stages)
            else:
                reasons += await self._step_reasons(run, step)
                reasons += await self._outside_reasons()
                waiting = int(run.get("inflight", "0")) > 0
                reasons += [_no_worker(state) for state in stages if not state.workers and (state.waiting or state.held) and waiting]
                if waiting and any(state.workers for state in stages if state.stage is Stage.INIT):
                    reasons += await self._class_reasons(run)
            if any(state.held for state in stages if state.stage is Stage.RUN) and int(run.get("inflight", "0")):
                reasons += await self._server_reasons()
        except BrokerError as error:
            return [f"Redis cannot be asked why: {error}"]
        if not reasons:
            busy = ", ".join(f"{state.stage.name} {state.held} at work and {state.waiting} waiting" for state in stages)
            reasons.append(f"Nothing stands in the way that Redis tells of: {busy}")
        return reasons

    @staticmethod
    def _run_reasons(run: Mapping[str, str]) -> list[str]:
        if not run:
            return ["Redis does not know the run: it has lost it, or its time to live ran out; connect again"]
        reasons = []
        if run.get("st") != "open":
            reasons.append(f"The run is {run.get('st')}")
        if run.get("cx"):
            reasons.append(f"The run was cancelled ({run['cx']})")
        if run.get("paused") == "1":
            reasons.append("The run is paused: nothing is admitted")
        quota, inflight = int(run.get("quota") or 0), int(run.get("inflight") or 0)
        if int(run.get("broken") or 0) >= BROKEN_IN_A_ROW:
            reasons.append(
                f"Infrastructure broke the last {run['broken']} groups whole: one is tried every {PROBE_EVERY_MS / 1000:.0f} s until one "
                "comes through"
            )
        if 0 < quota <= inflight:
            reasons.append(f"The run has its quota of {quota} jobs in flight")
        return reasons

    async def _job_reasons(self, job: str, stages: Sequence[StageState]) -> list[str]:
        found = texts(await ask(self._client, "HGETALL", self._keys.job(job)))
        if not found:
            return [
                f"Redis does not know job {job}: it was acked, or lost with the server's last writes (resubmit_unsettled sends it again)"
            ]
        stage = next((state for state in stages if state.stage.value == found.get("stage")), None)
        name = stage.stage.name if stage else found.get("stage", "?")
        reasons = []
        match found.get("st"):
            case "done":
                return ["The job has ended, its record is not read yet"]
            case "waiting":
                reasons.append(f"The job waits in the queue of its run behind {await self._before(job, found)} others")
            case "ready":
                reasons.append(f"The job waits for a worker of stage {name} in {found.get('src')}")
            case "running":
                reasons.append(
                    f"The job is at work in stage {name}, attempt {found.get('att')}, held by {found.get('own', '').split('#')[0]}"
                )
            case "awaiting":
                return [_awaiting(1)]
            case "delayed":
                reasons.append(f"The job waits to be tried again in stage {name}")
        if int(found.get("failed") or 0) + int(found.get("lost") or 0):
            last = f"; last: {found['err']}" if found.get("err") else ""
            reasons.append(f"It failed {found.get('failed')} times and was lost {found.get('lost')} times{last}")
        if stage is not None and not stage.workers:
            reasons.append(_no_worker(stage))
        elif found.get("st") == "ready" and (name := found.get("cls") or "none") != "none" and found.get("stage") == Stage.INIT.value:
            reasons += await self._class_reason(name)
        return reasons

    async def _class_reasons(self, run: Mapping[str, str]) -> list[str]:
        """Whether nobody serves the capability class that the oldest open step asks for, while others of INIT are alive."""
        if "first" not in run:
            return []
        name = (await ask(self._client, "HGET", self._keys.step(self._run, int(run["first"])), "cls") or b"none").decode()
        return [] if name == "none" else await self._class_reason(name)

    async def _class_reason(self, name: str) -> list[str]:
        state = await self._stage(Stage.INIT, [self._keys.short(self._keys.stage_stream(Stage.INIT, capability=name))])
        if state.workers or not state.waiting:
            return []
        return [
            f"No living worker of stage INIT serves the capability {name!r}, and {state.waiting} jobs wait for one: start some with it, or "
            "ask without (rollstream top shows the workers)"
        ]

    async def _before(self, job: str, found: Mapping[str, str]) -> int:
        """Jobs of the same lane that are admitted before this one."""
        queue = self._keys.queue(self._run, found.get("cls") or "none")
        rank = int(await ask(self._client, "ZRANK", queue, job) or 0)
        if validation_serial(found.get("grp", "")) is None:
            return rank
        return rank - int(await ask(self._client, "ZCOUNT", queue, "-inf", f"({VALIDATION_LANE}"))

    async def _step_reasons(self, run: Mapping[str, str], step: int | None) -> list[str]:
        keys = self._keys
        reasons = []
        if step is not None:
            record = self._inbox.steps.get(step) if self._inbox is not None else None
            if record is not None and self._inbox is not None and self._inbox.missing(record):
                reasons.append(
                    f"Step {step} is complete, but the records of {len(self._inbox.missing(record))} of its groups are not in the stream"
                )
            found = texts(await ask(self._client, "HGETALL", keys.step(self._run, step)))
            if found:
                words = ["filtered", "dropped", "cancelled", *(word for word in ("dead", "stale", "surplus") if word in found)]
                counts = ", ".join(f"{found.get(word, '0')} {word}" for word in words)
                reasons.append(f"Step {step} has {found.get('acc', '0')} of {found.get('target')} groups ({counts})")
                reasons += self._why_dropped(step)
                if "stale" in found:
                    reasons.append(
                        f"Groups are too old for step {step} (max_staleness={found.get('max_staleness')}): each step before it that is not "
                        "trained yet counts as an update to come; set_policy_version or ack those, or ask with a smaller ahead"
                    )
                reasons += await self._policy_reasons(step, found.get("policy", ""))
        broken = int(run.get("broken") or 0) >= BROKEN_IN_A_ROW
        unread = int(await ask(self._client, "XLEN", keys.results(self._run)))
        if unread >= self._max_unread:
            reasons.append(f"{unread} records are not acked: groups are launched for the oldest open step only")
        reserve = int(await ask(self._client, "ZCARD", keys.reserve(self._run)))
        flying = int(await ask(self._client, "ZCARD", keys.flying(self._run)))
        has_steps = int(await ask(self._client, "ZCARD", keys.steps(self._run)))
        if has_steps and not reserve and not flying:
            ended = run.get("ended") == run.get("inc")
            reasons.append("All prompts were fed and are done with" if ended else "The reserve is empty: feed prompts")
        oldest = await ask(self._client, "ZRANGE", keys.closed, 0, 0, "WITHSCORES", withscores=True)
        unaccounted_s = (await redis_now_ms(self._client) - oldest[0][1]) / 1000 if oldest else 0.0
        if unaccounted_s > UNACCOUNTED_S:
            reasons.append(f"Closed groups have not been accounted for {unaccounted_s:.0f} s: is a supervisor running?")
        elif step is None and has_steps and "first" not in run:
            reasons.append("No step is open: its trainer has the last one that it asked for")
        elif (
            has_steps
            and reserve
            and not flying
            and run.get("st") == "open"
            and not run.get("cx")
            and run.get("paused") != "1"
            and not broken
        ):
            reasons.append(f"{reserve} prompts are in the reserve and no group is in flight: is a supervisor running?")
        return reasons

    async def _policy_reasons(self, step: int, policy: str) -> list[str]:
        """Whether a supervisor lives that can judge the groups of a step."""
        since_ms = await redis_now_ms(self._client) - int(ANNOUNCED_S * 1000)
        known = sorted(word.decode() for word in await ask(self._client, "ZRANGEBYSCORE", self._keys.policies, since_ms, "+inf"))
        if not policy or not known or policy in known:
            return []
        return [
            f"No living supervisor knows the policy {policy!r} of step {step}, so its groups stay unjudged (known: {', '.join(known)}): "
            "install its package where supervisors run"
        ]

    def _why_dropped(self, step: int) -> list[str]:
        """What most groups fell to that taught nothing of their prompts: a broken policy or grader uses up a data set while one waits."""
        records = self._inbox.groups.values() if self._inbox is not None else ()
        lost = [record for record in records if record.step == step and record.verdict in (Verdict.DROPPED, Verdict.DEAD)]
        found = Counter(record.why for record in lost)
        member = {record.why: f"{record.group}.0" for record in lost}  # the latest of each
        return [
            f"{count} of its groups were dropped: {why} (of one member: rollstream job show {member[why]})"
            for why, count in found.most_common(1)
        ]

    async def _server_reasons(self) -> list[str]:
        """RUN workers hold the jobs of a run without a server to call, and wait for one."""
        return why_waiting(await InferencePool(self._client, self._namespace, lease_s=1.0).state(self._run))

    async def _outside_reasons(self) -> list[str]:
        held = len(self._inbox.outside.held) if self._inbox is not None else 0
        if held:
            return [f"{held} groups are held for their hook (run.group_hook)"]
        awaiting = int(await ask(self._client, "ZCARD", self._keys.awaiting(self._run)))
        return [_awaiting(awaiting)] if awaiting else []

    async def _stage(self, stage: Stage, streams: Sequence[str]) -> StageState:
        consumers: set[bytes] = set()
        waiting = held = 0
        for short in streams:
            stream = self._keys.key(short)
            pending = 0
            try:
                pending = int((await ask(self._client, "XPENDING", stream, stage.value))["pending"])
                consumers |= {row["name"] for row in await ask(self._client, "XINFO CONSUMERS", stream, stage.value)}
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error) and "no such key" not in str(error):
                    raise
                # nobody has read that stream yet
            waiting += int(await ask(self._client, "XLEN", stream)) - pending
            held += pending
        live = [await ask(self._client, "EXISTS", self._keys.worker(name.decode())) for name in consumers]
        return StageState(stage, sum(live), max(0, waiting), held)


def _awaiting(count: int) -> str:
    jobs = "The job awaits a reward" if count == 1 else f"{count} jobs await rewards"
    return f"{jobs} from outside: run.awaiting() gives out what does, run.report_reward() ends it"


def _no_worker(state: StageState) -> str:
    return f"No worker of stage {state.stage.name} is alive, and {state.waiting + state.held} jobs wait there"
