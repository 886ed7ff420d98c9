"""A worker without a loop: each step of a job's life happens when the test says so, as often as it says, in any order.

It speaks to Redis through the product's own scripts and keeps nothing but its name: one attempt can act twice, late, or after its death.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import redis

from pipeline.keys import Keys
from pipeline.messages import Outcome, SegmentSize, Settlement, Stage, TrajectoryCounts
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import Begun, Claim, Given, GiveUpKind, HandOff, Held, NameHolder, Scripts, Settle
from pipeline.scripts.reward_calls import AwaitReward, RewardScripts
from pipeline.scripts.runner import Arg
from pipeline.streams import ensure_group, parse_claim
from pipeline.testing.builders import a_settlement

LEASE_MS = 30_000
BODY_TTL_MS = 3_600_000
UNJUDGED = Settlement(
    outcome=Outcome.OK,
    stop="finished",
    sampled_tokens=7,
    total_tokens=24,
    turns=1,
    segments=(SegmentSize(tokens=14, loss_tokens=5), SegmentSize(tokens=10, loss_tokens=2)),
    counts=TrajectoryCounts(tool_calls=1, neg_logprob=3.5),
)
"""An end whose reward is still to come."""
HOLDER = NameHolder(node="n1", slots=4, pid=1, version="0")
NEXT_STAGE = {Stage.INIT: Stage.RUN, Stage.RUN: Stage.EVAL}


class ManualWorker:
    """One worker process of a stage, moved by hand.

    Args:
        consumer: its stable name.
        boot: tells this process from the one before with the same name.
        stream: the stream it reads; default: the common one of the stage.
    """

    def __init__(
        self, scripts: Scripts, stage: Stage, consumer: str = "w1", *, boot: str = "boot1", stream: str = "", window: int = 1024
    ) -> None:
        self.scripts = scripts
        self.keys: Keys = scripts.keys
        self.client: AsyncClient = scripts.run_script.client
        self.stage = stage
        self.consumer = consumer
        self.boot = boot
        self.stream = stream or self.keys.stage_stream(stage)
        self.window = window

    async def deliver(self, count: int = 1024) -> list[Claim]:
        """Reads new entries; they are this consumer's from now on, and not begun."""
        await ensure_group(self.client, self.keys, self.stage, self.stream)
        return await self._read(">", count)

    async def own_pending(self, count: int = 1024) -> list[Claim]:
        """What was delivered to this name and never taken off."""
        return await self._read("0", count)

    async def begin(self, *claims: Claim) -> list[Begun]:
        """Begins what was delivered."""
        return await self.scripts.begin(self.stage, self.consumer, self.boot, claims, lock_ms=LEASE_MS, window=self.window)

    async def take(self, count: int = 1024) -> list[Held]:
        """Delivers and begins; the attempts this worker now holds."""
        claims = await self.deliver(count)
        return [held_of(begun) for begun in await self.begin(*claims) if begun.state == "ok"] if claims else []

    async def hand_off(self, *jobs: Held, node: str = "", epoch: str = "", body: bytes = b"made here") -> list[str]:
        """Hands attempts to the next stage."""
        return await self.scripts.hand_off(self.stage, [HandOff(job, node, epoch, 5, body) for job in jobs], ttl_ms=BODY_TTL_MS)

    async def settle(
        self,
        *jobs: Held,
        settlement: Settlement | None = None,
        body: bytes = b"",
        kind: str = "",
        attached: Mapping[str, bytes] | None = None,
    ) -> list[str]:
        """Ends the jobs of attempts."""
        ends = [Settle(job, 5, body, kind or self.stage.value, settlement or a_settlement(), attached or {}) for job in jobs]
        return await self.scripts.settle(self.stage, ends, ttl_ms=BODY_TTL_MS)

    async def await_reward(
        self,
        *jobs: Held,
        settlement: Settlement | None = None,
        reward_deadline_s: float | None = 60.0,
        hold_s: float = 0.0,
        body: bytes = b"",
        attached: Mapping[str, bytes] | None = None,
    ) -> list[str]:
        """Lets the jobs of attempts await their reward, or their group's hook."""
        kind, end = self.stage.value, settlement or UNJUDGED
        waits = [AwaitReward(job, 5, body, kind, end, reward_deadline_s, hold_s, attached or {}) for job in jobs]
        return await RewardScripts(self.scripts.run_script).await_reward(self.stage, waits, ttl_ms=BODY_TTL_MS)

    async def give_up(
        self, *jobs: Held, kind: GiveUpKind = "failed", why: str = "broke", retry_stage: str = "", backoff_ms: int = 0
    ) -> list[str]:
        """Gives attempts up."""
        given = [Given(job, kind, why, 1.0, retry_stage) for job in jobs]
        return await self.scripts.give_up(self.stage, given, backoff_ms=backoff_ms, backoff_max_ms=max(60_000, backoff_ms))

    async def renew(self, *jobs: Held, skew_ms: int = 0, idle_why: str = "") -> tuple[bool, list[str]]:
        """Renews leases: (the name is held, per job `1`, `0` or the reason of its cancel)."""
        words: list[Arg] = [self.stage.value, self.consumer, self.boot, LEASE_MS, *HOLDER.words, skew_ms, idle_why]
        for job in jobs:
            words += [job.stream, job.entry, job.job, job.attempt]
        reply = await self.scripts.run_script("renew", *words)
        return reply[0] == 1, [word.decode() if isinstance(word, bytes) else str(word) for word in reply[1:]]

    async def recover(self, mode: str, *entries: Claim | Held, lease_ms: int = 0, backoff_ms: int = 0) -> list[str]:
        """Takes entries from owners that are gone: `idle` as a janitor, `restart` as the successor of an earlier boot."""
        return await self.scripts.recover(
            "restart" if mode == "restart" else "idle",
            [(entry.stream, entry.entry, entry.job, 1.0) for entry in entries],
            lease_ms=lease_ms,
            consumer=self.consumer,
            boot=self.boot,
            backoff_ms=backoff_ms,
            backoff_max_ms=60_000,
        )

    async def take_name(self, *, lock_ms: int = LEASE_MS) -> tuple[str, float] | None:
        """Takes the stable name for this boot."""
        return await self.scripts.take_name(self.stage, self.consumer, self.boot, HOLDER, lock_ms=lock_ms)

    async def _read(self, start: str, count: int) -> list[Claim]:
        try:
            reply = await ask(
                self.client, "XREADGROUP", "GROUP", self.stage.value, self.consumer, "COUNT", count, "STREAMS", self.stream, start
            )
        except redis.ResponseError as error:
            if "NOGROUP" in str(error):
                return []
            raise
        claims: list[Claim] = []
        for name, entries in reply or []:
            for entry, fields in entries:
                claim = parse_claim(self.keys.short(name.decode()), entry, fields or {})
                if isinstance(claim, Claim):
                    claims.append(claim)
        return claims


def held_of(begun: Begun) -> Held:
    """The attempt that `begin` gave."""
    return Held(begun.claim.stream, begun.claim.entry, begun.claim.job, begun.attempt)


async def carry(scripts: Scripts, *, to: Stage, count: int = 1024) -> list[Held]:
    """Takes waiting jobs through the stages before `to`, and begins them there."""
    for stage in Stage:
        worker = ManualWorker(scripts, stage)
        held: Sequence[Held] = await worker.take(count)
        if stage is to:
            return list(held)
        if held:
            await worker.hand_off(*held)
    raise AssertionError("no such stage")
