"""Why nothing comes: what stands in the way of a run, a step or a job, as far as Redis tells. By plain commands: who may only read sees it.

Only what a run itself waits for is said of it. Streams are shared: another run's jobs may stand in a stage that nobody serves, or at
workers that find no model server, and that explains nothing here. So the oldest open jobs of the run are looked at, and a stage, a
capability or servers are named when one of those stands there.

Workers are told by their name locks, which lapse within a lease of their death. Supervisors are told by what they announce every few
seconds, and by what is left undone: closed groups that nobody accounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.causes import Cause, Reason, in_order
from pipeline.counts import counted
from pipeline.fleet import StreamState, WorkerState, read_streams, read_workers
from pipeline.inference_pool import InferencePool, why_waiting
from pipeline.keys import VALIDATION_LANE, Keys, job_id, validation_serial
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.supervisor.ledger import BROKEN_IN_A_ROW, PROBE_EVERY_MS
from pipeline.supervisor.run_account import texts
from pipeline.supervisor.shortage import Shortage

ANNOUNCED_S = 30.0
"""A supervisor says every few seconds which policies it knows; `open_step` takes as long for granted."""
UNACCOUNTED_S = 5.0
"""A supervisor accounts a closed group within a second or two."""
UNITS_LOOKED_AT, MEMBERS_LOOKED_AT = 12, 4
"""Oldest open units of a run, and open members of each: they stand in front of the others, and tell what those will meet."""
STANDS_IN_STAGE = ("waiting", "ready", "running")
"""States of a job that a worker of its stage ends."""

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Streams and live workers of the run's shard."""

    streams: Sequence[StreamState]
    workers: Sequence[WorkerState]

    def of(self, stage: Stage) -> list[WorkerState]:
        """Live workers that read one of its streams."""
        names = {name for stream in self.streams if stream.stage is stage for name in stream.consumers}
        return [worker for worker in self.workers if worker.consumer in names]

    def counts(self, stage: Stage) -> tuple[int, int]:
        """Entries of its streams that a worker holds, and those that none has."""
        mine = [stream for stream in self.streams if stream.stage is stage]
        return sum(stream.held for stream in mine), sum(stream.waiting for stream in mine)

    def serving(self, short: str) -> tuple[bool, int]:
        """Whether a live worker reads a stream, and how many entries wait in it."""
        stream = next((stream for stream in self.streams if stream.short == short), None)
        if stream is None:
            return False, 0
        live = {worker.consumer for worker in self.workers}
        return not live.isdisjoint(stream.consumers), stream.waiting


class WaitReasons:
    """Looks for reasons in one run.

    Args:
        incarnation: of the trainer that asks; None = who asks is none.
        fleet: if it was read just now; else it is read.
        max_unread: records of results from which on less is launched (`QueueSettings.max_unread`).
    """

    def __init__(
        self,
        client: AsyncClient,
        keys: Keys,
        run: str,
        *,
        namespace: str,
        max_unread: int,
        incarnation: int | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._run = run
        self._namespace = namespace
        self._max_unread = max_unread
        self._incarnation = incarnation
        self._known_fleet = fleet

    async def of_run(self) -> list[Reason]:
        """What stands in the way of the run as a whole, what to see to first before the rest; never empty.

        Raises:
            BrokerError: Redis does not answer, or not to this user.
        """
        return await self._of_steps(None)

    async def of_step(self, index: int) -> list[Reason]:
        """What stands in the way of one step; as `of_run`."""
        return await self._of_steps(index)

    async def of_job(self, job: str) -> list[Reason]:
        """What stands in the way of one job; as `of_run`."""
        run = await self._fields(self._keys.run(self._run))
        if over := self._is_over(run):
            return [over]
        found = await self._fields(self._keys.job(job))
        if not found:
            what = f"Redis does not know job {job}: it was acked, or lost with the server's last writes"
            return [Reason(Cause.JOB_UNKNOWN, what, "resubmit_unsettled sends it again")]
        reasons = [] if found.get("st") == "done" else self._run_reasons(run)
        reasons += await self._job_reasons(job, found)
        if found.get("st") in STANDS_IN_STAGE:
            reasons += await self._stage_reasons([found], await self._fleet())
        return in_order(reasons)

    async def _of_steps(self, step: int | None) -> list[Reason]:
        run = await self._fields(self._keys.run(self._run))
        if over := self._is_over(run):
            return [over]
        reasons = self._run_reasons(run)
        fleet, jobs = await self._fleet(), await self._open_jobs()
        reasons += await self._stage_reasons([job for job in jobs if job.get("st") in STANDS_IN_STAGE], fleet)
        reasons += await self._ledger_reasons(run, step)
        awaiting = int(await ask(self._client, "ZCARD", self._keys.awaiting(self._run)))
        if awaiting:
            reasons.append(_awaiting(f"{awaiting} jobs await rewards" if awaiting > 1 else "A job awaits a reward"))
        if step is not None:
            reasons += await self._step_reasons(step)
        if all(reason.cause is Cause.IN_PROGRESS for reason in reasons):
            busy = ", ".join("{} {} at work and {} waiting".format(stage.name, *fleet.counts(stage)) for stage in Stage)
            reasons.append(Reason(Cause.IN_PROGRESS, f"Nothing stands in the way that Redis tells of: {busy}"))
        return in_order(reasons)

    # ---- the run

    def _is_over(self, run: Fields) -> Reason | None:
        """Beside this, nothing else is worth saying."""
        if not run:
            what = "Redis does not know the run: it has lost it, or its time to live ran out"
            return Reason(Cause.RUN_UNKNOWN, what, "connect again")
        if self._incarnation is not None and run.get("inc") != str(self._incarnation):
            what = f"Another trainer has the run (incarnation {run.get('inc')}, this one is {self._incarnation})"
            return Reason(Cause.RUN_TAKEN, what, "end this one, or connect again to take the run back")
        return None

    def _run_reasons(self, run: Fields) -> list[Reason]:
        reasons = []
        if run.get("st") != "open":
            why = f" ({run['why']})" if run.get("why") else ""
            reasons.append(Reason(Cause.RUN_CLOSED, f"The run is {run.get('st')}{why}", "connect again to open it"))
        if run.get("cx"):
            reasons.append(Reason(Cause.RUN_CANCELLED, f"The run was cancelled ({run['cx']})", "connect again to open it"))
        if run.get("paused") == "1":
            do = f"nothing is admitted before rollstream run set {self._run} --resume"
            reasons.append(Reason(Cause.RUN_PAUSED, "The run is paused", do))
        if run.get("short") == Shortage.QUEUE_FULL:
            what = "Redis is at its memory bound and takes no new work"
            reasons.append(Reason(Cause.QUEUE_FULL, what, "ack what was trained on, or give it more memory"))
        if _is_broken(run):
            what = f"Infrastructure broke the last {run['broken']} groups whole"
            every = f"one is tried every {PROBE_EVERY_MS / 1000:.0f} s until one comes through"
            do = f"rollstream queue peek dead names the reasons; {every}"
            reasons.append(Reason(Cause.GROUPS_BROKEN, what, do))
        quota, inflight = int(run.get("quota") or 0), int(run.get("inflight") or 0)
        if 0 < quota <= inflight:
            what = f"The run has its quota of {quota} jobs in flight"
            reasons.append(
                Reason(Cause.QUOTA_REACHED, what, f"wait for some to end, or raise it (rollstream run set {self._run} --quota N)")
            )
        return reasons

    # ---- where its jobs stand

    async def _fields(self, key: str) -> dict[str, str]:
        return texts(await ask(self._client, "HGETALL", key))

    async def _fleet(self) -> Fleet:
        if self._known_fleet is not None:
            return self._known_fleet
        streams = await read_streams(self._client, self._keys)
        return Fleet(streams, await read_workers(self._client, self._keys, streams))

    async def _open_jobs(self) -> list[dict[str, str]]:
        units = await ask(self._client, "ZRANGE", self._keys.open_units(self._run), 0, UNITS_LOOKED_AT - 1)
        jobs = await asyncio.gather(*(self._jobs_of(unit.decode()) for unit in units))
        return [fields for of_unit in jobs for fields in of_unit]

    async def _jobs_of(self, unit: str) -> list[dict[str, str]]:
        """Hashes of a single job, or of some members of a group that have not ended."""
        want = int(await ask(self._client, "HGET", self._keys.group(unit), "want") or 0)
        if not want:
            single = await self._fields(self._keys.job(unit))
            return [single] if single else []
        ended = set(await ask(self._client, "HKEYS", self._keys.members(unit)))
        left = [member for member in range(want) if str(member).encode() not in ended][:MEMBERS_LOOKED_AT]
        found = await asyncio.gather(*(self._fields(self._keys.job(job_id(unit, member))) for member in left))
        return [fields for fields in found if fields]

    async def _stage_reasons(self, jobs: Sequence[Fields], fleet: Fleet) -> list[Reason]:
        """What the stages lack in which jobs of the run stand."""
        reasons = []
        for stage in Stage:
            here = [job for job in jobs if job.get("stage") == stage.value]
            if not here:
                continue
            workers = fleet.of(stage)
            if not workers:
                held, waiting = fleet.counts(stage)
                what = f"No worker of stage {stage.name} is alive, and {counted(held + waiting, 'job waits', 'jobs wait')} there"
                reasons.append(Reason(Cause.NO_WORKER, what, f"start one (rollstream worker run --stage {stage.value})"))
            elif all(worker.idle_why for worker in workers):
                what = f"Each of {len(workers)} workers of stage {stage.name} claims nothing ({workers[0].idle_why})"
                reasons.append(Reason(Cause.WORKERS_IDLE, what, "mend that, or start workers on another node"))
            elif stage is Stage.INIT:
                reasons += self._capability_reasons(here, fleet)
            elif stage is Stage.RUN and any(job.get("st") == "running" for job in here):
                reasons += why_waiting(await InferencePool(self._client, self._namespace, lease_s=1.0).state(self._run))
        return reasons

    def _capability_reasons(self, jobs: Sequence[Fields], fleet: Fleet) -> list[Reason]:
        """Capabilities that nobody serves, while other workers of INIT live."""
        reasons = []
        for name in sorted({job.get("cls") or "none" for job in jobs} - {"none"}):
            is_served, waiting = fleet.serving(self._keys.short(self._keys.stage_stream(Stage.INIT, capability=name)))
            if waiting and not is_served:
                words = counted(waiting, "job waits", "jobs wait")
                what = f"No living worker of stage INIT serves the capability {name!r}, and {words} for one"
                reasons.append(Reason(Cause.NO_CAPABILITY, what, "start some with it, or ask without (rollstream top shows the workers)"))
        return reasons

    async def _job_reasons(self, job: str, found: Fields) -> list[Reason]:
        stage = next((stage.name for stage in Stage if stage.value == found.get("stage")), found.get("stage", "?"))
        reasons = []
        match found.get("st"):
            case "done":
                return [Reason(Cause.IN_PROGRESS, "The job has ended, its record is not read yet")]
            case "waiting":
                before = await self._before(job, found)
                reasons.append(Reason(Cause.IN_PROGRESS, f"The job waits in the queue of its run behind {before} others"))
            case "ready":
                reasons.append(Reason(Cause.IN_PROGRESS, f"The job waits for a worker of stage {stage} in {found.get('src')}"))
            case "running":
                what = f"The job is at work in stage {stage}, attempt {found.get('att')}, held by {found.get('own', '').split('#')[0]}"
                reasons.append(Reason(Cause.IN_PROGRESS, what))
            case "awaiting":
                return [_awaiting("The job awaits a reward")]
            case "delayed":
                reasons.append(Reason(Cause.IN_PROGRESS, f"The job waits to be tried again in stage {stage}"))
        if int(found.get("failed") or 0) + int(found.get("lost") or 0):
            last = f"; last: {found['err']}" if found.get("err") else ""
            what = f"It failed {found.get('failed')} times and was lost {found.get('lost')} times{last}"
            reasons.append(Reason(Cause.FAILED_BEFORE, what, f"rollstream job show {job} tells more"))
        return reasons

    async def _before(self, job: str, found: Fields) -> int:
        """Jobs of the same lane that are admitted before this one."""
        queue = self._keys.queue(self._run, found.get("cls") or "none")
        rank = int(await ask(self._client, "ZRANK", queue, job) or 0)
        if validation_serial(found.get("grp", "")) is None:
            return rank
        return rank - int(await ask(self._client, "ZCOUNT", queue, "-inf", f"({VALIDATION_LANE}"))

    # ---- the ledger

    async def _ledger_reasons(self, run: Fields, step: int | None) -> list[Reason]:
        keys, reasons = self._keys, []
        unread = int(await ask(self._client, "XLEN", keys.results(self._run)))
        if unread >= self._max_unread:
            what = f"{unread} records are not acked, so groups are launched for the oldest open step only"
            reasons.append(Reason(Cause.RESULTS_UNREAD, what, "ack steps and results that are done with"))
        reserve = int(await ask(self._client, "ZCARD", keys.reserve(self._run)))
        flying = int(await ask(self._client, "ZCARD", keys.flying(self._run)))
        has_steps = int(await ask(self._client, "ZCARD", keys.steps(self._run))) > 0
        if has_steps and not reserve and not flying:
            ended = run.get("ended") == run.get("inc")
            reasons.append(
                Reason(Cause.PROMPTS_ENDED, "All prompts were fed and are done with")
                if ended
                else Reason(Cause.RESERVE_EMPTY, "The reserve is empty", "feed prompts (run.feed), or say that no more come")
            )
        undone = await self._undone_reason(reserve if has_steps and not flying and _may_launch(run) else 0, waits=has_steps)
        if undone is not None:
            reasons.append(undone)
        elif step is None and has_steps and "first" not in run:
            reasons.append(Reason(Cause.NO_OPEN_STEP, "No step is open: its trainer has the last one that it asked for"))
        return reasons

    async def _undone_reason(self, undrawn: int, *, waits: bool) -> Reason | None:
        """Whether a supervisor is missed.

        Args:
            undrawn: prompts of which some should be in flight, and none is.
            waits: whether somebody waits for what supervisors do.
        """
        now_ms = await redis_now_ms(self._client)
        oldest = await ask(self._client, "ZRANGE", self._keys.closed, 0, 0, "WITHSCORES", withscores=True)
        unaccounted_s = (now_ms - oldest[0][1]) / 1000 if oldest else 0.0
        do = "start one, or see why it stands still (rollstream supervisor run)"
        if unaccounted_s > UNACCOUNTED_S:
            return Reason(
                Cause.NO_SUPERVISOR, f"Closed groups have not been accounted for {unaccounted_s:.0f} s: no supervisor does it", do
            )
        if not waits or await self._policies(now_ms):
            return None
        drawn = f", and {undrawn} prompts in the reserve are not drawn" if undrawn else ""
        return Reason(Cause.NO_SUPERVISOR, f"No supervisor is alive{drawn}", do)

    async def _policies(self, now_ms: int) -> list[str]:
        """Those that a supervisor said lately that it knows. Empty = none is alive."""
        since_ms = now_ms - int(ANNOUNCED_S * 1000)
        return sorted(word.decode() for word in await ask(self._client, "ZRANGEBYSCORE", self._keys.policies, since_ms, "+inf"))

    async def _step_reasons(self, step: int) -> list[Reason]:
        found = await self._fields(self._keys.step(self._run, step))
        if not found:
            return []
        words = ["filtered", "dropped", "cancelled", *(word for word in ("dead", "stale", "surplus") if word in found)]
        counts = ", ".join(f"{found.get(word, '0')} {word}" for word in words)
        reasons = [Reason(Cause.IN_PROGRESS, f"Step {step} has {found.get('acc', '0')} of {found.get('target')} groups ({counts})")]
        if "stale" in found:
            what = (
                f"Groups are too old for step {step} (max_staleness={found.get('max_staleness')}), as each step before it that is not "
                "trained yet counts as an update to come"
            )
            reasons.append(Reason(Cause.GROUPS_TOO_OLD, what, "set_policy_version or ack those, or ask with a smaller ahead"))
        policy, known = found.get("policy", ""), await self._policies(await redis_now_ms(self._client))
        if policy and known and policy not in known:
            what = (
                f"No living supervisor knows the policy {policy!r} of step {step}, so its groups stay unjudged (known: {', '.join(known)})"
            )
            reasons.append(Reason(Cause.POLICY_UNKNOWN, what, "install its package where supervisors run"))
        return reasons


def _is_broken(run: Fields) -> bool:
    return int(run.get("broken") or 0) >= BROKEN_IN_A_ROW


def _may_launch(run: Fields) -> bool:
    return run.get("st") == "open" and not run.get("cx") and run.get("paused") != "1" and not _is_broken(run)


def _awaiting(what: str) -> Reason:
    return Reason(Cause.AWAITING_REWARDS, f"{what} from outside", "run.awaiting() gives out what does, run.report_reward() ends it")


__all__ = ["WaitReasons"]
