"""One typed function a script. Arguments and replies are in the head of each `.lua` file; nothing else builds them.

Calls that take many jobs take at most `MAX_BATCH`, so that no script holds the server long.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, cast

import orjson

from pipeline.errors import BrokerMisused, IdTaken
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Settlement, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.replies import check_refusal, full_when_out_of_memory, text, whole
from pipeline.scripts.runner import Arg, ScriptRunner
from pipeline.segment_sizes import sizes_text
from pipeline.trajectory_counts import counts_text

MAX_BATCH = 32
ACKED_A_CALL = 512
"""Jobs that one call of an ack lets go of: some three milliseconds of the server."""
CANCELLED_A_CALL = 128
"""Members that one call of a cancel passes over: some two milliseconds of the server."""
GiveUpKind = Literal["failed", "lost", "back", "dead"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A single job (`members` 0) or a whole group, as it is accepted."""

    id: str
    members: int
    prompt_id: str
    draw: int
    version: str
    body: bytes
    """Encoded `Prompt`."""
    digest: str = ""
    """Of the request that a single job is made of, kept with the job: sent again with another one, it is refused. Empty = none is kept,
    and whoever sends it again gets the job that is there."""


class Accepted(StrEnum):
    """What became of a unit that was sent."""

    NEW = "ok"
    """It is in the queue."""
    KNOWN = "dup"
    """It was sent before, and is there."""
    ACKED = "acked"
    """It was sent before, and its trainer let go of its result: it does not run again."""


@dataclass(frozen=True, slots=True)
class NameHolder:
    """The process that holds a worker's stable name, for people who look."""

    node: str
    slots: int
    pid: int
    version: str
    """Of the software."""

    @property
    def words(self) -> tuple[Arg, ...]:
        """As the scripts take them."""
        return self.node, self.slots, self.pid, self.version


@dataclass(frozen=True, slots=True)
class LaneReader:
    """A process that reads its node's lane of a stage."""

    stage: Stage
    consumer: str
    slots: int
    classes: tuple[str, ...]
    """Capability classes whose jobs it takes."""

    def words(self, *, claims: bool = True) -> tuple[Arg, ...]:
        """As `beat_node` takes them; without `claims` nothing more is put there."""
        return self.stage.value, self.consumer, self.slots if claims else 0, " ".join(self.classes)


@dataclass(frozen=True, slots=True)
class Claim:
    """An entry that was delivered to this consumer."""

    stream: str
    """Without tag."""
    entry: str
    job: str
    run: str
    group: str
    member: int
    task: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Begun:
    """What `begin` answered for a claim."""

    claim: Claim
    state: Literal["ok", "gone", "ended", "usurped", "held"]
    attempt: int = 0
    template: str = ""
    draw: int = 0
    init_attempt: int = 0
    run_attempt: int = 0
    failed: int = 0
    node: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """An attempt that this process holds."""

    stream: str
    entry: str
    job: str
    attempt: int

    @property
    def place(self) -> tuple[str, str]:
        """Stream and entry: an id alone is one in its stream only, and two streams get entries in the same millisecond."""
        return self.stream, self.entry


@dataclass(frozen=True, slots=True)
class JournalTurn:
    """A finished turn, as a delta."""

    job: str
    attempt: int
    index: int
    body: bytes
    sampled_tokens: int = 0
    """In this turn: what is counted of a job that is cut off later."""


@dataclass(frozen=True, slots=True)
class HandOff:
    """A stage's output, and where the job goes."""

    held: Held
    node: str
    """Lane of this node, or empty for any."""
    epoch: str
    active_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Settle:
    """How an attempt ends its job."""

    held: Held
    active_ms: int
    body: bytes
    """Body of `kind`, or empty."""
    kind: str
    settlement: Settlement
    attached: Mapping[str, bytes] = field(default_factory=dict)
    """By-products beside the body: they live and go with it."""


@dataclass(frozen=True, slots=True)
class Given:
    """An attempt that is given up."""

    held: Held
    kind: GiveUpKind
    why: str
    jitter: float
    retry_stage: str = ""


class Scripts:
    """The scripts of one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self.keys = keys
        self.run_script = ScriptRunner(client, keys)

    async def connect_run(
        self, run: str, *, nonce: str, ttl_s: float, gone_s: float = 0.0, weight: float | None = None, quota: int | None = None
    ) -> int:
        """Takes a run; returns the new incarnation. Again with the same nonce: the same one.

        Args:
            ttl_s: how long its keys outlive the last sign of its trainer.
            gone_s: after so long without a sign the run is closed; 0 = `ttl_s`.
            weight, quota: None = as it stands; 1 and no bound in a new run.
        """
        bounds: list[Arg] = [int(ttl_s * 1000), "" if weight is None else weight, "" if quota is None else quota]
        reply = await self.run_script("connect_run", run, nonce, *bounds, int((gone_s or ttl_s) * 1000))
        return whole(reply[0])

    async def touch_run(self, run: str, incarnation: int) -> None:
        """Says that the trainer is there.

        Raises:
            StaleIncarnation, RunClosed
        """
        check_refusal(await self.run_script("touch_run", run, incarnation), run, incarnation)

    async def accept(
        self,
        run: str,
        incarnation: int,
        template: JobTemplate,
        template_id: str,
        template_body: bytes,
        units: Sequence[Unit],
        *,
        max_waiting: int,
        window: int,
        validation: int | None = None,
    ) -> list[Accepted]:
        """Puts units into the queue of their run, and says of each whether it is new or was known.

        Args:
            validation: serial of the validation they are part of: they wait in its lane, and nobody judges their groups.

        Raises:
            IdTaken: a job that is there has another digest; nothing was accepted.
            QueueFull, StaleIncarnation, RunClosed
        """
        args: list[Arg] = [run, incarnation, template_id, template_body, template.task, template.capability, template.priority]
        args += [int(template.wall_s * 1000), template.max_failed, template.max_lost, template.expected_bytes, max_waiting, window]
        args += [template.recovery.value, "" if validation is None else validation]
        for unit in units:
            args += [unit.id, unit.members, unit.prompt_id, unit.draw, unit.version, unit.body, unit.digest]
        with full_when_out_of_memory():
            reply = await self.run_script("accept", *args)
        check_refusal(reply, run, incarnation)
        if reply and reply[0] == b"other":
            raise IdTaken(text(reply[1]).removeprefix(f"{run}."))
        return [Accepted(text(word)) for word in reply]

    async def admit(self, capabilities: Iterable[str], window: int) -> int:
        """Moves waiting jobs to INIT while that is short; returns how many."""
        return whole((await self.run_script("admit", window, *capabilities))[0])

    async def begin(self, stage: Stage, consumer: str, boot: str, claims: Sequence[Claim], *, lock_ms: int, window: int) -> list[Begun]:
        """Begins what was delivered; the attempt of each is its fencing token."""
        args: list[Arg] = [stage.value, consumer, boot, lock_ms, window]
        for claim in claims:
            args += [claim.stream, claim.entry, claim.job, claim.nonce]
        reply = await self.run_script("begin", *args)
        return [_begun(claim, cast(list[bytes], answer)) for claim, answer in zip(claims, reply, strict=True)]

    async def journal(self, turns: Sequence[JournalTurn], *, ttl_ms: int) -> list[str]:
        """Keeps finished turns; per turn `1`, `0` (lost) or the reason of a cancel."""
        args: list[Arg] = [ttl_ms]
        for turn in turns:
            args += [turn.job, turn.attempt, turn.index, turn.body, turn.sampled_tokens]
        reply = await self.run_script("journal", *args)
        return [text(word) for word in reply]

    async def hand_off(self, stage: Stage, jobs: Sequence[HandOff], *, ttl_ms: int) -> list[str]:
        """Hands jobs to the next stage; per job `ok`, `again`, `fenced`, `node_gone` or `cx:<reason>`."""
        args: list[Arg] = [stage.value, ttl_ms]
        for job in jobs:
            args += [*_held(job.held), job.node, job.epoch, job.active_ms, job.body]
        reply = await self.run_script("hand_off", *args, place=f"hand_off_{stage.value}")
        return [text(word) for word in reply]

    async def settle(self, stage: Stage, jobs: Sequence[Settle], *, ttl_ms: int) -> list[str]:
        """Ends jobs; per job `ok`, `again`, `fenced` or `cx:<reason>`."""
        args: list[Arg] = [stage.value, ttl_ms]
        for job in jobs:
            args += [*_held(job.held), job.active_ms, job.body, job.kind, *settlement_args(job.settlement), *attached_args(job.attached)]
        reply = await self.run_script("settle", *args, place=f"settle_{stage.value}")
        return [text(word) for word in reply]

    async def give_up(self, stage: Stage, jobs: Sequence[Given], *, backoff_ms: int, backoff_max_ms: int) -> list[str]:
        """Gives attempts up; per job `retry`, `back`, `dead`, `fenced` or `cx:<reason>`."""
        args: list[Arg] = [stage.value, backoff_ms, backoff_max_ms]
        for job in jobs:
            args += [*_held(job.held), job.kind, _plain(job.why, 2000), job.jitter, job.retry_stage]
        reply = await self.run_script("give_up", *args)
        return [text(word) for word in reply]

    async def recover(
        self,
        mode: Literal["idle", "restart"],
        entries: Sequence[tuple[str, str, str, float]],
        *,
        lease_ms: int,
        consumer: str,
        boot: str,
        backoff_ms: int,
        backoff_max_ms: int,
    ) -> list[str]:
        """Takes entries from owners that are gone. An entry is (stream, entry id, job, jitter)."""
        args: list[Arg] = [mode, lease_ms, consumer, boot, backoff_ms, backoff_max_ms]
        for entry in entries:
            args += entry
        reply = await self.run_script("recover", *args)
        return [text(word) for word in reply]

    async def promote(self, most: int = MAX_BATCH) -> tuple[int, float | None]:
        """Promotes retries that are due; returns how many, and seconds until the next one.

        Raises:
            BrokerMisused: one of them cannot move; the others did.
        """
        reply = await self.run_script("promote", most)
        _none_stuck(reply[2])
        wait = whole(reply[1])
        return whole(reply[0]), None if wait < 0 else wait / 1000

    async def cancel(
        self, kind: Literal["job", "group", "run"], ids: Sequence[str], reason: str, *, most: int = CANCELLED_A_CALL, incarnation: int = 0
    ) -> dict[str, int]:
        """Cancels; returns how many jobs were settled at once, marked as running, already done, or unknown.

        The first call of each 32 targets (of each run) marks them and tells the workers, the others settle: see `docs/adr/0008-cancel.md`.

        Args:
            most: members that one call passes over.
            incarnation: of the trainer that cancels its run: what a newer one started stays; 0 = the one that has the run now.
        """
        total = {"settled": 0, "running": 0, "done": 0, "unknown": 0}
        if kind == "run":
            for run in ids:
                await self._cancel_run(run, reason, most, total, incarnation or await self._incarnation(run))
            return total
        for at in range(0, len(ids), MAX_BATCH):
            await self._cancel(kind, ids[at : at + MAX_BATCH], reason, most, total, 0)
        return total

    async def _incarnation(self, run: str) -> int:
        found = await ask(self.run_script.client, "HMGET", self.keys.run(run), "inc")
        return whole(found[0] or b"0")

    async def _cancel(self, kind: str, ids: Sequence[str], reason: str, most: int, total: dict[str, int], incarnation: int) -> None:
        """One pass over some targets."""
        cursor, more = "", True
        while more:
            reply = await self.run_script("cancel", kind, reason, most, cursor, incarnation, *ids)
            _add(total, reply)
            more, cursor = reply[0] == b"more", text(reply[5])

    async def _cancel_run(self, run: str, reason: str, most: int, total: dict[str, int], incarnation: int) -> None:
        """Passes over the open units of a run until one finds nothing left to settle; that last one also counts what runs."""
        is_first = True
        while True:
            found = dict.fromkeys(total, 0)
            await self._cancel("run", [run], reason, most, found, incarnation)
            total["settled"] += found["settled"]
            # later passes meet what earlier ones have settled
            total["done"] += found["done"] if is_first else 0
            is_first = False
            if not found["settled"]:
                total["running"] += found["running"]
                total["unknown"] += found["unknown"]
                return

    async def take_name(
        self, stage: Stage, consumer: str, boot: str, holder: NameHolder, *, lock_ms: int, dead: str = ""
    ) -> tuple[str, float] | None:
        """Takes a worker's stable name; None when it is ours, else (boot that holds it, seconds until it lapses).

        Args:
            dead: a boot that is known to be dead; the name is taken from it.
        """
        reply = await self.run_script("take_name", stage.value, consumer, boot, lock_ms, *holder.words, dead)
        return None if reply[0] == b"ok" else (text(reply[1]), whole(reply[2]) / 1000)

    async def drop_name(self, consumer: str, boot: str) -> bool:
        """Gives a name up after a clean stop; False when it was not ours."""
        return whole((await self.run_script("drop_name", consumer, boot))[0]) == 1

    async def drop_consumer(self, stream: str, stage: Stage, consumer: str) -> bool:
        """Deletes a consumer whose name nobody holds and that has nothing pending."""
        return whole((await self.run_script("drop_consumer", stream, stage.value, consumer))[0]) == 1

    async def beat_node(
        self, node: str, epoch: str, *, live_ms: int, reads_lane: bool, leaving: bool = False, lane: LaneReader | None = None
    ) -> None:
        """Says that a node is alive, and that its lane is read.

        Args:
            reads_lane: by a RUN worker: this one.
            lane: by this process, with the slots that jobs may be placed by.
        """
        await self.run_script("beat_node", node, epoch, live_ms, int(reads_lane), int(leaving), *(lane.words() if lane else ()))

    async def place_by_image(self, held: Held, node: str, image: str) -> str:
        """Where a job of INIT is made whose sandbox has an image: `here`, `fenced`, or the name of the node that has it from now on."""
        word, *to = await self.run_script("place_by_image", held.stream, held.entry, held.job, held.attempt, node, image)
        return text(to[0]) if to else text(word)

    async def janitor_round(self, who: str, *, period_ms: int, lease_ms: int) -> tuple[bool, bool, int]:
        """Asks for this round; returns (it is ours, no lease is judged for now, wake-ups that could not be written so far)."""
        reply = await self.run_script("janitor_round", who, period_ms, lease_ms)
        return whole(reply[0]) == 1, whole(reply[1]) == 1, whole(reply[2])

    async def expire_deadlines(self, most: int = MAX_BATCH) -> tuple[int, int]:
        """Ends jobs past their wall deadline; returns (ended at once, cancelled at their worker).

        Raises:
            BrokerMisused: one of them cannot end; the others did.
        """
        reply = await self.run_script("expire_deadlines", most)
        _none_stuck(reply[2])
        return whole(reply[0]), whole(reply[1])

    async def sweep_lane(self, stream: str, node: str, most: int = MAX_BATCH) -> tuple[int, int, bool]:
        """Sends back what waits in a dead node's lane; returns (sent back, left, lane deleted)."""
        reply = await self.run_script("sweep_lane", stream, node, most)
        return whole(reply[0]), whole(reply[1]), whole(reply[2]) == 1

    async def reconcile(self, run: str, cursor: str = "0", most: int = MAX_BATCH) -> tuple[str, int]:
        """Puts back open jobs of a run whose entry is in no stream; returns (next cursor, how many)."""
        reply = await self.run_script("reconcile", run, cursor, most)
        return text(reply[0]), whole(reply[1])

    async def keep_body(self, job: str, attempt: int, kind: str, body: bytes, *, ttl_ms: int) -> bool:
        """Keeps a body as long as its job, at least `ttl_ms`; False when there was one."""
        return whole((await self.run_script("keep_body", job, attempt, kind, body, ttl_ms))[0]) == 1

    async def reject(self, stream: str, stage: Stage, entry: str, why: str, raw: bytes) -> None:
        """Keeps an entry that is no job as a dead letter and removes it."""
        await self.run_script("reject", stream, stage.value, entry, _plain(why, 500), raw)

    async def ack(
        self,
        run: str,
        incarnation: int,
        results: Sequence[tuple[str, Literal["job", "group", "step"], str]],
        *,
        most: int = ACKED_A_CALL,
    ) -> int:
        """Lets go of results: (entry id, kind, id). Returns how many entries were removed.

        Args:
            most: jobs that one call passes over.

        Raises:
            StaleIncarnation, RunClosed
        """
        removed = 0
        for at in range(0, len(results), MAX_BATCH):
            batch = [word for result in results[at : at + MAX_BATCH] for word in result]
            place, member, more = 0, 0, True
            while more:
                reply = await self.run_script("ack", run, incarnation, most, place, member, *batch)
                check_refusal(reply, run, incarnation)
                removed += whole(reply[1])
                more, place, member = reply[0] == b"more", whole(reply[2]), whole(reply[3])
        return removed


def _none_stuck(problem: object) -> None:
    if problem:
        raise BrokerMisused(text(problem))


def new_nonce() -> str:
    """A word that no other call has."""
    return secrets.token_hex(8)


def _add(total: dict[str, int], reply: Sequence[object]) -> None:
    for word, number in zip(("settled", "running", "done", "unknown"), reply[1:5], strict=True):
        total[word] += whole(number)


def _plain(text: str, most: int) -> str:
    """Text that Redis can hold: what has no UTF-8 form (a lone surrogate in an exception's message) is written out."""
    return text[:most].encode("utf-8", "backslashreplace").decode()


def settlement_args(end: Settlement) -> list[Arg]:
    """What an attempt ends as, as the scripts take it: twelve texts."""
    # float(): a grader's number may be one of numpy's, whose repr is no number
    components = {name: float(value) for name, value in end.components.items()}
    return [
        end.outcome.value,
        _plain(end.reason, 500),
        "" if end.reward is None else repr(float(end.reward)),
        orjson.dumps(components) if components else b"",
        end.stop,
        end.sampled_tokens,
        end.total_tokens,
        end.turns,
        _plain(end.first_version, 200),
        _plain(end.last_version, 200),
        sizes_text(end.segments),
        counts_text(end.counts),
    ]


def attached_args(attached: Mapping[str, bytes]) -> list[Arg]:
    """By-products as the scripts take them: how many, then of each its name and content."""
    return [len(attached), *(word for pair in attached.items() for word in pair)]


def _held(held: Held) -> tuple[Arg, ...]:
    return held.stream, held.entry, held.job, held.attempt


def _begun(claim: Claim, answer: Sequence[bytes]) -> Begun:
    if answer[0] != b"ok":
        return Begun(claim, cast(Literal["gone", "ended", "usurped", "held"], answer[0].decode()))
    _, attempt, template, draw, init, run, failed, node, incarnation = answer
    return Begun(claim, "ok", int(attempt), template.decode(), int(draw), int(init), int(run), int(failed), node.decode(), int(incarnation))
