"""Looks at the whole queue in Redis and says what does not fit together. For tests, chaos runs, and a person with doubts.

What must hold at any moment, between any two scripts:

  1. A job that has not ended is in exactly one place, the one its state names: the queue of its run (`waiting`), one stage stream (`ready`;
     and pending there, when `running`), or the delayed retries (`delayed`); one that awaits its reward (`awaiting`) is in
     none. A job that has ended is in none and has exactly one record.
  2. A group is closed exactly when each member has a line in it, is in `z:closed` once until it has its verdict or is parked, and was
     announced once. One of a validation is neither in there nor announced: nobody judges it.
  3. Counters agree with what they count: `inflight` of a run with its jobs that are past admission and have not ended, `reserved` with the
     bytes of all that have not ended.
  4. What is open has a deadline and stands in `open:<run>`; what has ended does neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import Unit
from pipeline.testing.builders import jobs_of

SCAN_COUNT = 10_000
Hash = dict[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a stage stream."""

    stream: str
    """Without tag."""
    id: str
    job: str
    pending_of: str
    """Consumer it was delivered to, empty when to none."""


@dataclass(slots=True)
class _Found:
    """All of one shard's queue, as read."""

    entries: list[Entry] = field(default_factory=list)
    queued: Counter[str] = field(default_factory=Counter)
    delayed: Counter[str] = field(default_factory=Counter)
    deadlines: set[str] = field(default_factory=set)
    records: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    announced: Counter[str] = field(default_factory=Counter)
    open_units: set[str] = field(default_factory=set)


class QueueAudit:
    """Reads one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    async def job(self, job: str) -> Hash:
        """The hash of a job; empty when there is none."""
        return await self.hash(self.keys.job(job))

    async def jobs(self, jobs: Sequence[str]) -> dict[str, Hash]:
        """The hashes of many jobs, in one round trip."""
        async with self.client.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.execute_command("HGETALL", self.keys.job(job))
            return {job: _text(found) for job, found in zip(jobs, await pipe.execute(), strict=True)}

    async def hash(self, key: str) -> Hash:
        """A hash as text."""
        return _text(await ask(self.client, "HGETALL", key))

    async def results(self, run: str) -> list[Hash]:
        """Terminal records of a run, in order, each with its `entry` id."""
        return await self.entries(self.keys.results(run))

    async def entries(self, stream: str) -> list[Hash]:
        """All entries of a stream as text, each with its id as `entry`."""
        reply = await ask(self.client, "XRANGE", stream, "-", "+")
        return [{"entry": entry.decode(), **{name.decode(): value.decode() for name, value in row.items()}} for entry, row in reply]

    async def members(self, group: str) -> dict[int, list[str]]:
        """Lines of a group's members, split into their fields."""
        return {int(number): line.split("|", 11) for number, line in (await self.hash(self.keys.members(group))).items()}

    async def counter(self, run: str, name: str) -> int:
        """A counter in the hash of a run."""
        return int((await self.hash(self.keys.run(run))).get(name, "0"))

    async def reserved_bytes(self) -> int:
        """Bytes reserved for jobs that have not ended."""
        return int((await self.hash(self.keys.meta)).get("reserved", "0"))

    async def stage_entries(self) -> list[Entry]:
        """Every entry of every stage stream, lanes included."""
        found: list[Entry] = []
        prefixes = tuple(self.keys.key("s", stage) for stage in ("init", "run", "eval"))
        streams = [key.decode() async for key in self.client.scan_iter(match=f"{self.keys.tag}:s:*", _type="stream", count=SCAN_COUNT)]
        for stream in sorted(key for key in streams if key.startswith(prefixes)):
            short = self.keys.short(stream)
            owners: dict[str, str] = {}
            if await ask(self.client, "XINFO GROUPS", stream):
                rows = await ask(self.client, "XPENDING", stream, short.split(":")[1], "-", "+", 100_000, parse_detail=True)
                owners = {row["message_id"].decode(): row["consumer"].decode() for row in rows}
            for row in await self.entries(stream):
                found.append(Entry(short, row["entry"], row.get("job", ""), owners.pop(row["entry"], "")))
            found += [Entry(short, entry, "", f"{owner}, deleted but pending") for entry, owner in owners.items()]
        return found

    async def faults(self, run: str, units: Sequence[Unit]) -> list[str]:
        """What does not fit among the jobs of these units, which are all that the run was ever given and none of which was acked."""
        found = await self._read(run)
        faults: list[str] = []
        in_flight = reserved = 0
        places: dict[str, list[Entry]] = {}
        for entry in found.entries:
            places.setdefault(entry.job, []).append(entry)
        known = {job for unit in units for job in jobs_of(unit)}
        faults += [f"{entry} is no job of this run" for entry in found.entries if entry.job not in known]
        for unit in units:
            ended = 0
            for job, h in (await self.jobs(jobs_of(unit))).items():
                faults += self._job_faults(job, h, places.get(job, []), found)
                ended += h.get("st") == "done"
                if h.get("st") != "done":
                    reserved += int(h.get("res", "0"))
                    in_flight += h.get("st") not in ("waiting", "awaiting")
            faults += await self._unit_faults(unit, ended, found)
        if (counted := await self.counter(run, "inflight")) != in_flight:
            faults.append(f"inflight of {run} is {counted}, its jobs in flight are {in_flight}")
        if (bytes_ := await self.reserved_bytes()) != reserved:
            faults.append(f"reserved is {bytes_}, jobs that have not ended expect {reserved}")
        return faults

    async def all_ended(self, run: str, units: Sequence[Unit]) -> list[str]:
        """`faults`, and what has not ended."""
        states = await self.jobs([job for unit in units for job in jobs_of(unit)])
        open_jobs = [f"{job} is {h.get('st', 'gone')}" for job, h in states.items() if h.get("st") != "done"]
        return open_jobs + await self.faults(run, units)

    def _job_faults(self, job: str, h: Hash, places: list[Entry], found: _Found) -> list[str]:
        state = h.get("st", "gone")
        expected = {
            "waiting": (1, 0, 0, 0),
            "ready": (0, 1, 0, 0),
            "running": (0, 1, 0, 0),
            "delayed": (0, 0, 1, 0),
            "awaiting": (0, 0, 0, 0),
            "done": (0, 0, 0, 1),
        }.get(state)
        counted = (found.queued[job], len(places), found.delayed[job], found.records[job])
        faults = []
        if counted != expected:
            faults.append(f"{job} is {state}: (queue, streams, delayed, records) are {counted}, expected {expected}; {places}")
        if (job in found.deadlines) != (state != "done"):
            faults.append(f"{job} is {state} and {'has' if job in found.deadlines else 'has no'} deadline")
        for entry in places:
            if (entry.stream, entry.id) != (h.get("src"), h.get("eid")):
                faults.append(f"{job} names {h.get('src')} {h.get('eid')}, but is at {entry}")
            if state == "running" and entry.pending_of != h.get("own", "").split("#")[0]:
                faults.append(f"{job} runs at {h.get('own')}, but is pending of {entry.pending_of or 'nobody'}")
        return faults

    async def _unit_faults(self, unit: Unit, ended: int, found: _Found) -> list[str]:
        faults = []
        total = len(jobs_of(unit))
        if (unit.id in found.open_units) != (ended < total):
            faults.append(
                f"{unit.id}: {ended} of {total} ended, and it is {'' if unit.id in found.open_units else 'not '}in the open units"
            )
        if unit.members:
            group = await self.hash(self.keys.group(unit.id))
            state = group.get("st", "gone")
            lines = len(await self.members(unit.id))
            if lines != ended:
                faults.append(f"{unit.id}: {ended} members ended, {lines} have a line")
            if state != ("closed" if ended == total else "open"):
                faults.append(f"{unit.id}: {ended} of {total} members ended, the group is {state}")
            told = (found.closed[unit.id], found.announced[unit.id])
            waits = int("verdict" not in group and "parked" not in group)
            if told != ((waits, 1) if ended == total and "val" not in group else (0, 0)):
                faults.append(f"{unit.id}: {ended} of {total} members ended, (in z:closed, announced) are {told}")
        return faults

    async def _read(self, run: str) -> _Found:
        found = _Found(entries=await self.stage_entries())
        queues = {key async for key in self.client.scan_iter(match=f"{self.keys.queue(run)}*", count=SCAN_COUNT)}
        for queue in queues:
            found.queued.update(job.decode() for job in await ask(self.client, "ZRANGE", queue, 0, -1))
        found.delayed.update(job.decode() for job in await ask(self.client, "ZRANGE", self.keys.key("z:delay"), 0, -1))
        found.deadlines = {job.decode() for job in await ask(self.client, "ZRANGE", self.keys.key("z:deadline"), 0, -1)}
        found.records.update(row["job"] for row in await self.results(run) if row["kind"] == "job")
        found.closed.update(group.decode() for group in await ask(self.client, "ZRANGE", self.keys.key("z:closed"), 0, -1))
        found.announced.update(row["grp"] for row in await self.entries(self.keys.reward) if row["kind"] == "group_closed")
        found.open_units = {unit.decode() for unit in await ask(self.client, "ZRANGE", self.keys.open_units(run), 0, -1)}
        return found


def _text(found: dict[bytes, bytes]) -> Hash:
    return {name.decode(): value.decode() for name, value in found.items()}
