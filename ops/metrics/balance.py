"""Whether every job that was accepted is somewhere, once; and what else metrics say that `rollstream status` does not ask.

Each script moves a job from one count to the next, so between any two of them (`pipeline/testing/queue_audit.py`):

    of a run      accepted = waiting + in flight + awaiting + ended by any outcome
    of a shard    in flight of all runs = entries of the stage streams + delayed retries

The parts are several keys, so they are read between two readings of the counters, in one pipeline: when these differ something moved
meanwhile, and the whole is read again; what moves each time is not judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, broker_error, cancel_is_kept
from pipeline.supervisor.run_account import texts

TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBalance:
    """Jobs of one run, by where they are."""

    accepted: int
    waiting: int
    in_flight: int
    awaiting: int
    ended: Mapping[str, int]
    """By outcome."""
    steps: int
    """That reached their target."""
    unread_since_ms: int
    """When the oldest record that is not acknowledged was written; 0 = there is none."""
    is_steady: bool
    """Nothing moved while it was read."""

    @property
    def unaccounted(self) -> int | None:
        """More than 0: missing; less: counted twice. None = it is not known."""
        found = self.accepted - self.waiting - self.in_flight - self.awaiting - sum(self.ended.values())
        return found if self.is_steady else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBalance:
    """Jobs of one shard."""

    runs: Mapping[str, RunBalance]
    runs_known: int
    """Also those that were not asked for."""
    astray: int | None
    """In flight and in no stream; less than 0: in a stream and not counted. None = it is not known."""
    dead_ever: int
    """Dead letters that were ever written."""

    @property
    def is_steady(self) -> bool:
        """Whether all is known that was asked for."""
        whole = self.astray is not None or self.runs_known > len(self.runs)
        return whole and all(run.is_steady for run in self.runs.values())


async def read_balance(client: AsyncClient, keys: Keys, runs: Sequence[str], streams: Sequence[str]) -> ShardBalance:
    """The balance of a shard.

    Args:
        runs: to look at.
        streams: all stage streams, without tag.

    Raises:
        BrokerError: Redis does not answer, or not to this user.
    """
    classes = sorted({"none", *(word.decode() for word in await ask(client, "SMEMBERS", keys.key("classes")))})
    for _ in range(TRIES):
        found = await _read(client, keys, runs, streams, classes)
        if found.is_steady:
            break
    return found


async def _read(client: AsyncClient, keys: Keys, runs: Sequence[str], streams: Sequence[str], classes: Sequence[str]) -> ShardBalance:
    words: list[tuple[str | int, ...]] = []
    for run in runs:
        words += [
            ("HGETALL", keys.run(run)),
            *(("ZCARD", keys.queue(run, name)) for name in classes),
            ("ZCARD", keys.key("aw", run)),
            ("HGETALL", keys.run(run)),
            ("XRANGE", keys.results(run), "-", "+", "COUNT", 1),
        ]
    in_flight: list[tuple[str | int, ...]] = [("HGET", keys.run(run), "inflight") for run in runs]
    words += [*in_flight, *(("XLEN", keys.key(stream)) for stream in streams), ("ZCARD", keys.key("z:delay")), *in_flight]
    words += [("ZCARD", keys.runs), ("XINFO STREAM", keys.dead)]
    replies = iter(await _together(client, words))

    def take(count: int) -> list[Any]:  # Any: the shape of a reply is its command's
        return [next(replies) for _ in range(count)]

    found = {}
    for run in runs:
        replies_of_run = take(1)[0], take(len(classes)), *take(3)
        with contextlib.suppress(ValueError):  # a counter that is none: as one that is not there
            balance = _run(*replies_of_run)
            if balance is not None:
                found[run] = balance
    before, entries, after = take(len(runs)), take(len(streams) + 1), take(len(runs))
    known, dead = take(2)
    is_whole = before == after and known == len(runs) == len(found)
    return ShardBalance(
        runs=found,
        runs_known=int(known),
        astray=sum(int(count or 0) for count in before) - sum(map(int, entries)) if is_whole else None,
        dead_ever=0 if isinstance(dead, Exception) else int(dead.get("entries-added", 0)),  # no stream: none has died
    )


def _run(
    before: Mapping[bytes, bytes], waiting: Sequence[int], awaiting: int, after: Mapping[bytes, bytes], oldest: Any
) -> RunBalance | None:
    # Any: an entry, as redis-py parses it
    fields = texts(before)
    if "inc" not in fields:
        return None
    counters = [name for name in before.keys() | after.keys() if name in (b"accepted", b"inflight") or name.startswith(b"out.")]
    return RunBalance(
        accepted=int(fields.get("accepted", 0)),
        waiting=sum(map(int, waiting)),
        in_flight=int(fields.get("inflight", 0)),
        awaiting=int(awaiting),
        ended={name.removeprefix("out."): int(value) for name, value in fields.items() if name.startswith("out.")},
        steps=int(fields.get("steps.reached", 0)),
        unread_since_ms=int(oldest[0][0].split(b"-")[0]) if oldest else 0,
        is_steady=all(before.get(name) == after.get(name) for name in counters),
    )


async def _together(client: AsyncClient, words: Sequence[tuple[str | int, ...]]) -> list[Any]:
    """Replies to commands that are sent together; that a stream is not there is a reply, any other refusal is raised."""
    pipe = client.pipeline(transaction=False)
    for command in words:
        cast(Any, pipe).execute_command(*command)
    try:
        with cancel_is_kept():
            replies: list[Any] = await pipe.execute(raise_on_error=False)
    except (redis.RedisError, OSError) as error:
        raise broker_error(error) from error
    for reply in replies:
        if isinstance(reply, redis.RedisError) and "no such key" not in str(reply):
            raise broker_error(reply) from reply
    return replies
