"""Reads the ledger of runs from Redis, many keys a round trip.

What is read spans several commands, so it may mix two states. That is harmless: the revision is read first, each script checks it again,
and a decision on a mixed view is refused as one on an old view is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson
import redis

from pipeline.keys import Keys, run_ids, run_of
from pipeline.messages import Outcome, Stage
from pipeline.redis_client import AsyncClient, broker_error, cancel_is_kept
from pipeline.settings import MAX_UNREAD
from pipeline.supervisor.monitors import WindowGroup, read_window
from pipeline.supervisor.staleness import Version
from pipeline.supervisor.step_spec import OnStale, StepSpec
from pipeline.supervisor.views import Basis, ClosedGroup, FlyingGroup, Member, OpenStep, RunView

Command = tuple[str | int, ...]
Hash = dict[str, str]
NEWEST_STEPS = 128
"""Steps that are looked at for their training: far more than are open ahead."""
MEMBER_FIELDS = 10
"""Fields of a member's line before its reason and components."""


@dataclass(frozen=True, slots=True)
class UnreadableGroup:
    """Keys of a closed group that are gone, or none of ours."""

    why: str


class LedgerReader:
    """Reads the ledgers of one shard.

    Args:
        max_unread: see `QueueSettings.max_unread`.
    """

    def __init__(self, client: AsyncClient, keys: Keys, *, max_unread: int = MAX_UNREAD) -> None:
        self._client = client
        self._keys = keys
        self._max_unread = max_unread

    async def active_runs(self) -> list[str]:
        """Runs that a supervisor may have work for: those with an open step, or with groups in flight or parked."""
        runs = run_ids((await self._ask([("ZRANGE", self._keys.runs, 0, -1)]))[0])
        if not runs:
            return []
        # a run whose hash is something else by now is looked at, and told of, like any other
        firsts = await self._ask([("HGET", self._keys.run(run), "first") for run in runs], errors=True)
        counts = await self._ask([("EXISTS", self._keys.flying(run), self._keys.parked(run)) for run in runs])
        return [run for run, first, count in zip(runs, firsts, counts, strict=True) if first is not None or count]

    async def closed(self, most: int, skip: int = 0) -> dict[str, list[str]]:
        """Groups that closed and are not accounted, oldest first, by run."""
        found: dict[str, list[str]] = {}
        for word in (await self._ask([("ZRANGE", self._keys.closed, skip, skip + most - 1)]))[0]:
            group = word.decode()
            found.setdefault(run_of(group), []).append(group)
        return found

    async def run(self, run: str) -> RunView | None:
        """How a run stands; None when it does not exist."""
        keys = self._keys
        first = await self._ask(
            [
                ("HGETALL", keys.run(run)),
                ("ZCARD", keys.flying(run)),
                ("ZCARD", keys.reserve(run)),
                ("ZRANGE", keys.parked(run), 0, -1),
                ("TIME",),
                ("XLEN", keys.results(run)),
            ]
        )
        head = _text_hash(first[0])
        if "inc" not in head:
            return None
        steps: list[OpenStep] = []
        if "first" in head:
            indices = [int(word) for word in (await self._ask([("ZRANGEBYSCORE", keys.steps(run), head["first"], "+inf")]))[0]]
            hashes = await self._ask([("HGETALL", keys.step(run, index)) for index in indices])
            for index, found in zip(indices, map(_text_hash, hashes), strict=True):
                if found.get("st") == "open":
                    steps.append(OpenStep(index=index, spec=StepSpec.from_fields(found), accepted=int(found.get("acc", "0"))))
        parked = await self.groups([word.decode() for word in first[3]])
        places, reserve_place = await self._places(run) if any(step.spec.deterministic for step in steps) else ({}, None)
        return RunView(
            basis=Basis(run, int(head["inc"]), int(head.get("rev", "0"))),
            steps=tuple(steps),
            flying=int(first[1]),
            reserve=int(first[2]),
            prompts_ended=head.get("ended") == head["inc"],
            need_announced="need" in head,
            paused=head.get("paused") == "1",
            is_behind=int(first[5]) >= self._max_unread,
            shortage=head.get("short", ""),
            judged=int(head.get("rate.judged", "0")),
            informative=int(head.get("rate.informative", "0")),
            broken=int(head.get("broken", "0")),
            broken_ms=int(head.get("broken.t", "0")),
            cancelled_for=head.get("cx", ""),
            is_open=head.get("st") == "open",
            version=Version(int(head["inc"]), int(head["ver"])) if "ver" in head else None,
            untrained=await self._untrained(run, head["inc"]) if "ver" in head and any(map(_drops_stale, steps)) else (),
            has_deadlines="deadlines" in head,
            now_ms=int(first[4][0]) * 1000 + int(first[4][1]) // 1000,
            contact_ms=int(head.get("contact", "0")),
            flying_places=places,
            reserve_place=reserve_place,
            parked=tuple(group for group in parked.values() if isinstance(group, ClosedGroup)),
            unreadable_parked={name: group.why for name, group in parked.items() if isinstance(group, UnreadableGroup)},
        )

    async def _untrained(self, run: str, incarnation: str) -> tuple[int, ...]:
        """Steps that were reached, are not acked, and brought no update in this incarnation."""
        indices = (await self._ask([("ZREVRANGE", self._keys.steps(run), 0, NEWEST_STEPS - 1)]))[0]
        heads = await self._ask([("HMGET", self._keys.step(run, index.decode()), "st", "rid", "trained") for index in indices])
        waiting = [
            (int(index), entry)
            for index, (state, entry, trained) in zip(indices, heads, strict=True)
            if state == b"reached" and entry is not None and trained != incarnation.encode()
        ]
        records = await self._ask([("XRANGE", self._keys.results(run), entry, entry) for _, entry in waiting])
        return tuple(index for (index, _), record in zip(waiting, records, strict=True) if record)

    async def _places(self, run: str) -> tuple[dict[str, int], int | None]:
        """Places of the prompts in flight, by group, and the lowest place in the reserve."""
        front, listed = await self._ask(
            [("ZRANGE", self._keys.reserve(run), 0, 0, "WITHSCORES"), ("ZRANGE", self._keys.flying(run), 0, -1)]
        )
        flying = [word.decode() for word in listed]
        found = await self._ask([("HGET", self._keys.group(group), "place") for group in flying], errors=True)
        places = {group: int(place) for group, place in zip(flying, found, strict=True) if isinstance(place, bytes)}
        return places, int(float(front[1])) if front else None

    async def groups(self, ids: Sequence[str]) -> dict[str, ClosedGroup | UnreadableGroup]:
        """Closed groups with their members, without those that have their verdict; for one that cannot be read what is wrong with it."""
        replies = await self._ask(
            [command for group in ids for command in (("HGETALL", self._keys.group(group)), ("HGETALL", self._keys.members(group)))],
            errors=True,
        )
        heads: dict[str, Hash] = {}
        lines: dict[str, Hash] = {}
        found: dict[str, ClosedGroup | UnreadableGroup] = {}
        for group, head, members in zip(ids, replies[::2], replies[1::2], strict=True):
            if isinstance(head, Exception) or isinstance(members, Exception):
                found[group] = UnreadableGroup(str(head if isinstance(head, Exception) else members))
            elif "verdict" not in (fields := _text_hash(head)):
                heads[group], lines[group] = fields, _text_hash(members)
        specs = await self._specs_of((run_of(group), head["step"]) for group, head in heads.items() if "step" in head)
        for group, head in heads.items():
            try:
                found[group] = _closed_group(group, head, lines[group], specs)
            except (KeyError, ValueError) as error:
                found[group] = UnreadableGroup(f"{type(error).__name__}: {error}")
        return {group: found[group] for group in ids if group in found}

    async def flying(self, run: str) -> tuple[FlyingGroup, ...]:
        """Groups in flight with how far they are."""
        listed, still, now = await self._ask(
            [
                ("ZRANGE", self._keys.flying(run), 0, -1, "WITHSCORES"),
                ("HMGET", self._keys.run(run), "still.ms", "still.since", "still.until"),
                ("TIME",),
            ]
        )
        stood_ms, stands = _stood_still(still, int(now[0]) * 1000 + int(now[1]) // 1000)
        ids = [(listed[i].decode(), int(float(listed[i + 1]))) for i in range(0, len(listed), 2)]
        replies = await self._ask(
            [
                command
                for group, _ in ids
                for command in (
                    ("HMGET", self._keys.group(group), "inc", "want", "begun", "st", "late_at", "late", "aw", "stood"),
                    ("HVALS", self._keys.members(group)),
                )
            ],
            errors=True,
        )
        found: list[FlyingGroup] = []
        for (group, launched_ms), head, members in zip(ids, replies[::2], replies[1::2], strict=True):
            # keys that are something else by now are `stuck`'s, and keep the run no longer
            if isinstance(head, Exception) or isinstance(members, Exception) or head[3] != b"open":
                continue
            awaiting = int(head[6] or 0)  # for their reward: they ended with something the policy did
            finished = sum(line.startswith((b"ok|", b"model_failure|")) for line in members) + awaiting
            found.append(
                FlyingGroup(
                    id=group,
                    incarnation=int(head[0]),
                    want=int(head[1]),
                    launched_ms=launched_ms,
                    ended=len(members),
                    finished=finished,
                    begun=int(head[2] or 0),
                    late_at_ms=int(head[4]) + stood_ms - int(head[7] or 0) if head[4] and head[5] is None and not stands else 0,
                )
            )
        return tuple(found)

    async def stuck(self, run: str) -> list[str]:
        """The group longest in flight, when it is not open any more and not recorded as closed: something of it was lost."""
        oldest = (await self._ask([("ZRANGE", self._keys.flying(run), 0, 0)]))[0]
        if not oldest:
            return []
        group = oldest[0].decode()
        # a hash that is something else by now is no open group's
        commands: list[Command] = [("HGET", self._keys.group(group), "st"), ("ZSCORE", self._keys.closed, group)]
        state, listed = await self._ask(commands, errors=True)
        return [] if state == b"open" or listed is not None else [group]

    async def window(self, run: str) -> list[WindowGroup]:
        """The newest closed groups of a run, as the monitors remember them."""
        return read_window((await self._ask([("LRANGE", self._keys.window(run), 0, -1)]))[0])

    async def idle_stages(self) -> list[Stage]:
        """Stages in which jobs wait and no worker lives.

        A worker is known as a consumer of the stage's common stream, which it reads beside its lane. Some servers list a consumer only
        after its first entry; a stage in which nothing waits is therefore not asked.
        """
        read, classes = await self._ask([("SMEMBERS", self._keys.key("streams")), ("SMEMBERS", self._keys.key("classes"))])
        common = [self._keys.stage_stream(stage) for stage in Stage]
        common += [self._keys.stage_stream(Stage.INIT, capability=word.decode()) for word in classes]
        streams = sorted({*(word.decode() for word in read), *map(self._keys.short, common)})  # nobody may have read these yet
        stages = [Stage(short.split(":")[1]) for short in streams]
        lengths = await self._ask([("XLEN", self._keys.key(short)) for short in streams], errors=True)
        waiting = {stage for stage, length in zip(stages, lengths, strict=True) if not isinstance(length, Exception) and length}
        asked = [(short, stage) for short, stage in zip(streams, stages, strict=True) if stage in waiting and "@" not in short]
        replies = await self._ask([("XINFO", "CONSUMERS", self._keys.key(short), stage.value) for short, stage in asked], errors=True)
        names = {stage: set[bytes]() for stage in Stage if stage in waiting}
        for (_, stage), reply in zip(asked, replies, strict=True):
            if not isinstance(reply, Exception):  # the group is being made or swept
                names[stage] |= {_name_of(row) for row in reply}
        known = [stage for stage, found in names.items() if found]
        live = await self._ask([("EXISTS", *(self._keys.worker(name.decode()) for name in names[stage])) for stage in known])
        beating = {stage for stage, count in zip(known, live, strict=True) if count}
        return [stage for stage in names if stage not in beating]

    async def _specs_of(self, steps: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], StepSpec]:
        """Specification by (run, step); groups that close together are of a few steps."""
        wanted = sorted(set(steps))
        replies = map(_text_hash, await self._ask([("HGETALL", self._keys.step(run, k)) for run, k in wanted]))
        return {step: StepSpec.from_fields(found) for step, found in zip(wanted, replies, strict=True) if "target" in found}

    async def _ask(self, commands: Sequence[Command], *, errors: bool = False) -> list[Any]:
        """Replies as the server sends them (their shape belongs to the command).

        Raises:
            BrokerUnreachable, BrokerMisused, redis.ResponseError: unless `errors` asks for them in their place.
        """
        if not commands:
            return []
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            cast(Any, pipe).execute_command(*command)
        try:
            with cancel_is_kept():
                return list(await pipe.execute(raise_on_error=not errors))
        except (redis.RedisError, OSError) as error:
            raise broker_error(error) from error


def parse_member(line: str) -> Member:
    """A member's line, as the script that ends a job writes it: outcome, reward, stop reason, tokens, ..., reason, components.

    Raises:
        ValueError: no line of ours.
    """
    fields = line.split("|", MEMBER_FIELDS)
    if len(fields) <= MEMBER_FIELDS:
        raise ValueError(f"a member's line has {len(fields)} fields: {line[:80]!r}")
    reason, raw = _reason_and_components(fields[MEMBER_FIELDS])
    return Member(
        outcome=Outcome(fields[0]),
        reward=float(fields[1]) if fields[1] else None,
        components={str(name): None if value is None else float(value) for name, value in raw.items()},
        reason=reason,
        stop=fields[2],
        sampled_tokens=int(fields[3]),
        total_tokens=int(fields[4]),
        first_version=fields[7],
        last_version=fields[8],
    )


def _reason_and_components(rest: str) -> tuple[str, dict[str, float | None]]:
    """Both are free text and may hold the separator: components are empty, or the longest map that the line ends with."""
    if rest.endswith("|"):
        return rest[:-1], {}
    at = rest.find("|{")
    while at >= 0:
        try:
            return rest[:at], orjson.loads(rest[at + 1 :])
        except ValueError:
            at = rest.find("|{", at + 1)
    raise ValueError(f"a member's line without components: {rest[:80]!r}")


def _closed_group(group: str, head: Hash, lines: Hash, specs: Mapping[tuple[str, str], StepSpec]) -> ClosedGroup:
    want = int(head["want"])
    spec = specs.get((run_of(group), head.get("step", "")))
    return ClosedGroup(
        id=group,
        incarnation=int(head.get("inc", "0")),
        want=want,
        members={int(index): replace(parse_member(line), more_tokens=int(head.get(f"more.{index}", "0"))) for index, line in lines.items()},
        closed_ms=int(head.get("closed", "0")),
        spec=spec or StepSpec(target=1, n=want),
        prompt=head.get("prompt", ""),
        launched_by_ledger="step" in head,
        redraws=int(head.get("redraws", "0")),
        given_up=head.get("cx", ""),
        parked="parked" in head,
        launched_for=int(head["step"]) if "step" in head else None,
        place=int(head.get("place", "0")),
    )


def _drops_stale(step: OpenStep) -> bool:
    return step.spec.on_stale is OnStale.DROP


def _name_of(consumer: Any) -> bytes:
    """Name of a consumer as XINFO describes it, whatever way the client hands it over."""
    row = consumer if isinstance(consumer, dict) else dict(zip(consumer[::2], consumer[1::2], strict=True))
    return cast(bytes, row[b"name"])


def _text_hash(reply: object) -> Hash:
    """A hash as text, whatever way the client hands it over."""
    if isinstance(reply, dict):
        return {name.decode(): value.decode(errors="replace") for name, value in reply.items()}
    flat = cast(list[bytes], reply)
    return {flat[i].decode(): flat[i + 1].decode(errors="replace") for i in range(0, len(flat), 2)}


def _stood_still(fields: Sequence[bytes | None], now_ms: int) -> tuple[int, bool]:
    """How long the deadlines of a run stood still so far, ms, and whether they do now; as `stood_still` of the script library."""
    ms, since, until = (int(float(field)) if field is not None else None for field in fields)
    if since is None or until is None:
        return ms or 0, False
    return (ms or 0) + max(0, min(now_ms, until) - since), until > now_ms
