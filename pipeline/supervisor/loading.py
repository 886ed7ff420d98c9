"""Reads the ledger of runs from Redis, many keys a round trip.

What is read spans several commands, so it may mix two states. That is harmless: the revision is read first, each script checks it again,
and a decision on a mixed view is refused as one on an old view is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
import redis

from pipeline.keys import Keys, run_of
from pipeline.messages import Outcome
from pipeline.redis_client import AsyncClient, broker_error
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import Basis, ClosedGroup, FlyingGroup, Member, OpenStep, RunView

Command = tuple[str | int, ...]
Hash = dict[str, str]
MEMBER_FIELDS = 10
"""Fields of a member's line before its reason and components."""


@dataclass(frozen=True, slots=True)
class UnreadableGroup:
    """Keys of a closed group that are gone, or none of ours."""

    why: str


class LedgerReader:
    """Reads the ledgers of one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def active_runs(self) -> list[str]:
        """Runs that a supervisor may have work for: those with an open step, or with groups in flight or parked."""
        runs = [word.decode() for word in (await self._ask([("ZRANGE", self._keys.runs, 0, -1)]))[0]]
        if not runs:
            return []
        firsts = await self._ask([("HGET", self._keys.run(run), "first") for run in runs])
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
            judged=int(head.get("rate.judged", "0")),
            informative=int(head.get("rate.informative", "0")),
            cancelled_for=head.get("cx", ""),
            is_open=head.get("st") == "open",
            flying_places=places,
            reserve_place=reserve_place,
            parked=tuple(group for group in parked.values() if isinstance(group, ClosedGroup)),
        )

    async def _places(self, run: str) -> tuple[dict[str, int], int | None]:
        """Places of the prompts in flight, by group, and the lowest place in the reserve."""
        front, listed = await self._ask(
            [("ZRANGE", self._keys.reserve(run), 0, 0, "WITHSCORES"), ("ZRANGE", self._keys.flying(run), 0, -1)]
        )
        flying = [word.decode() for word in listed]
        found = await self._ask([("HGET", self._keys.group(group), "place") for group in flying])
        places = {group: int(place) for group, place in zip(flying, found, strict=True) if place is not None}
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
        listed = (await self._ask([("ZRANGE", self._keys.flying(run), 0, -1, "WITHSCORES")]))[0]
        ids = [(listed[i].decode(), int(float(listed[i + 1]))) for i in range(0, len(listed), 2)]
        replies = await self._ask(
            [
                command
                for group, _ in ids
                for command in (
                    ("HMGET", self._keys.group(group), "inc", "want", "begun", "st"),
                    ("HVALS", self._keys.members(group)),
                )
            ]
        )
        found: list[FlyingGroup] = []
        for (group, launched_ms), head, members in zip(ids, replies[::2], replies[1::2], strict=True):
            if head[3] != b"open":
                continue
            finished = sum(line.startswith((b"ok|", b"model_failure|")) for line in members)
            found.append(
                FlyingGroup(
                    id=group,
                    incarnation=int(head[0]),
                    want=int(head[1]),
                    launched_ms=launched_ms,
                    ended=len(members),
                    finished=finished,
                    begun=int(head[2] or 0),
                )
            )
        return tuple(found)

    async def stuck(self, run: str) -> list[str]:
        """The group longest in flight, when it is not open any more and not recorded as closed: something of it was lost."""
        oldest = (await self._ask([("ZRANGE", self._keys.flying(run), 0, 0)]))[0]
        if not oldest:
            return []
        group = oldest[0].decode()
        state, listed = await self._ask([("HGET", self._keys.group(group), "st"), ("ZSCORE", self._keys.closed, group)])
        return [] if state == b"open" or listed is not None else [group]

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
    # the reason is free text and may hold the separator: components are empty or the last map
    rest = fields[MEMBER_FIELDS]
    at = len(rest) - 1 if rest.endswith("|") else rest.rfind("|{")
    if at < 0:
        raise ValueError(f"a member's line without components: {line[:80]!r}")
    raw = orjson.loads(rest[at + 1 :]) if rest[at + 1 :] else {}
    return Member(
        outcome=Outcome(fields[0]),
        reward=float(fields[1]) if fields[1] else None,
        components={str(name): None if value is None else float(value) for name, value in raw.items()},
        reason=rest[:at],
        stop=fields[2],
        sampled_tokens=int(fields[3]),
        total_tokens=int(fields[4]),
        first_version=fields[7],
        last_version=fields[8],
    )


def _closed_group(group: str, head: Hash, lines: Hash, specs: Mapping[tuple[str, str], StepSpec]) -> ClosedGroup:
    want = int(head["want"])
    spec = specs.get((run_of(group), head.get("step", "")))
    return ClosedGroup(
        id=group,
        incarnation=int(head.get("inc", "0")),
        want=want,
        members={int(index): parse_member(line) for index, line in lines.items()},
        closed_ms=int(head.get("closed", "0")),
        spec=spec or StepSpec(target=1, n=want),
        launched_by_ledger="step" in head,
        redraws=int(head.get("redraws", "0")),
        given_up=head.get("cx", ""),
        parked="parked" in head,
        launched_for=int(head["step"]) if "step" in head else None,
        place=int(head.get("place", "0")),
    )


def _text_hash(reply: object) -> Hash:
    """A hash as text, whatever way the client hands it over."""
    if isinstance(reply, dict):
        return {name.decode(): value.decode(errors="replace") for name, value in reply.items()}
    flat = cast(list[bytes], reply)
    return {flat[i].decode(): flat[i + 1].decode(errors="replace") for i in range(0, len(flat), 2)}
