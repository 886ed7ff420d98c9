"""The whole story of one job, from what Redis still has of it: header, timeline, attempts, reward, trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import TypeVar, cast

from ops.job.attempts import EarlierAttempt, earlier_attempts
from pipeline import codec
from pipeline.errors import DamagedBody, NewerMessage, RollstreamError
from pipeline.keys import Keys
from pipeline.messages import Grade, Prompt, Stage, Trajectory
from pipeline.redis_client import AsyncClient, ask
from workers.handlers.base import Environment
from workers.sandbox.use import SandboxUse
from workers.stages.sandbox_record import SANDBOX

Record = TypeVar("Record")


class NoSuchJob(RollstreamError):
    """Nothing is known of the job: never accepted, or acknowledged by its trainer."""

    def __init__(self, job: str) -> None:
        super().__init__(f"no job {job!r}: it was never accepted, or its trainer acknowledged it and its records went")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """What is there of a job. Bodies are None when they are not there or cannot be read."""

    job: str
    header: Mapping[str, str]
    prompt: Prompt | None
    trajectory: Trajectory | None
    grade: Grade | None
    unreadable: tuple[str, ...]
    """Bodies that could not be read, and why."""
    sandbox: SandboxUse | None = None
    """What it used of sandboxes, what bounded them, and what was ended in them, over the stages so far."""
    attached: Mapping[str, int] = field(default_factory=dict)
    """What is kept beside its grade: name to bytes, as kept."""

    @property
    def attempts(self) -> tuple[EarlierAttempt, ...]:
        """Those that ended short of what their stage makes; the newest are kept."""
        return earlier_attempts(self.header)

    @property
    def state(self) -> str:
        """Where it stands, in words."""
        h = self.header
        if h.get("st") == "done":
            return f"{h.get('out', '?')}" + (f" ({h['why']})" if h.get("why") else "")
        if h.get("st") == "awaiting":
            if h.get("aw.rew"):
                return f"awaiting its group's hook, with reward {float(h['aw.rew']):g}"
            due = datetime.fromtimestamp(int(h.get("rdl", "0")) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
            return f"awaiting a reward from outside until {due} UTC, then {h.get('aw.out', '?')}"
        held = f", held by {h['own']}" if h.get("st") == "running" else ""
        return f"{h.get('st', '?')} in {h.get('stage', '?').upper()}{held}"

    def timeline(self) -> list[tuple[str, str]]:
        """Moments and what happened then."""
        h = self.header
        moments = [("t", "accepted"), ("at.init", "INIT began"), ("at.run", "RUN began"), ("at.eval", "EVAL began")]
        moments += [("rewarded", "rewarded from outside"), ("done", "ended")]
        found = [(int(h[name]), what) for name, what in moments if h.get(name)]
        moments_ms = sorted(found, key=itemgetter(0))
        return [(datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3], what) for ms, what in moments_ms]


async def job_story(client: AsyncClient, keys: Keys, job: str) -> JobStory:
    """Reads it.

    Raises:
        NoSuchJob
        BrokerError
    """
    raw = await ask(client, "HGETALL", keys.job(job))
    if not raw:
        raise NoSuchJob(job)
    header = {name.decode(): value.decode("utf-8", "replace") for name, value in raw.items()}
    unreadable: list[str] = []

    async def body(cls: type[Record], key: str) -> Record | None:
        found = await ask(client, "GET", key)
        if found is None:
            return None
        try:
            return codec.decode(cls, found)
        except (DamagedBody, NewerMessage) as error:
            unreadable.append(f"{keys.short(key)}: {error}")
            return None

    prompt = await body(Prompt, keys.prompt(header.get("grp") or job))
    trajectory = await body(Trajectory, keys.body(job, header.get("b.run", "0"), Stage.RUN.value))
    grade = await body(Grade, keys.body(job, header.get("b.eval", "0"), Stage.EVAL.value))
    environment = await body(Environment, keys.body(job, header.get("b.init", "0"), Stage.INIT.value))
    said = [grade.details.get(SANDBOX) if grade else None, trajectory.extra.get(SANDBOX) if trajectory else None]
    said.append(environment.used if environment else None)  # nothing else of it is shown: it holds the key to the sandbox
    sandbox = None
    for record in said:
        if isinstance(record, Mapping) and record:
            try:
                sandbox = SandboxUse.from_map(record)
                break
            except ValueError as error:
                unreadable.append(str(error))
    return JobStory(
        job=job,
        header=header,
        prompt=prompt,
        trajectory=trajectory,
        grade=grade,
        unreadable=tuple(unreadable),
        sandbox=sandbox,
        attached=await byproducts_of(client, keys, job, header["b.eval"]) if "b.eval" in header else {},
    )


async def byproducts_of(client: AsyncClient, keys: Keys, job: str, attempt: str) -> dict[str, int]:
    """Names and bytes, as kept, of what stands beside the grade of an attempt; empty when nothing does."""
    key = keys.attached(job, attempt)
    names = sorted(cast(list[bytes], await ask(client, "HKEYS", key)))
    return {name.decode("utf-8", "replace"): int(await ask(client, "HSTRLEN", key, name)) for name in names}
