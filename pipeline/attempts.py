"""One attempt of a job as its work sees it: whether it may go on, what it promises, and how it may end.

A stage gives a `Work`: an async function of a `JobControl` that returns an `End`. The consumer loop (`pipeline/consumer.py`) makes the
one and takes the other.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.errors import JobCancelled, LeaseLost
from pipeline.messages import Outcome, Settlement
from pipeline.scripts.calls import Begun, GiveUpKind, Held, JournalTurn

LOST, SILENT = "lost", "silent"
"""Verdicts beside the reasons of a cancel: another has the job; its promise of a sign of life has lapsed."""
FIRST_PROGRESS_S = 120.0
"""A job that promised nothing yet must give a sign within this time."""


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The stage's work is done; the job goes on."""

    body: bytes
    node: str = ""
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """The job ends here."""

    settlement: Settlement
    body: bytes = b""
    kind: str = "eval"
    attached: Mapping[str, bytes] = field(default_factory=dict, kw_only=True)
    """By-products beside the body; without a body there are none."""


@dataclass(frozen=True, slots=True)
class Awaiting(Settled):
    """The job ends here, as it says, when its reward or its group's hook has come (ADR 10). Nobody holds it until then."""

    reward_deadline_s: float | None = None
    """None = it has its reward."""
    hold_s: float = 0.0
    """Its group is held at most this long; 0 = no hook."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """This attempt could not do it."""

    kind: GiveUpKind
    why: str
    retry_stage: str = ""
    is_unfit: bool = False
    """It is this worker that cannot serve such a job: it claims nothing for a while, so that another gets it."""


End = HandedOff | Settled | GivenUp


def fault_of(end: object) -> str:
    """What keeps an end from being said to Redis; empty when nothing does.

    Ends come from handlers and their hooks, which are anybody's code: whatever the types say.
    """
    body: object = b""
    texts: list[object]
    if isinstance(end, HandedOff):
        texts, body = [end.node, end.epoch], end.body
    elif isinstance(end, GivenUp):
        texts = [end.kind, end.why, end.retry_stage]
    elif isinstance(end, Settled):
        said = end.settlement
        outcome: object = said.outcome
        if not isinstance(outcome, Outcome):
            return f"the outcome is {outcome!r}, expected an Outcome"
        numbers = {**said.components, **({} if said.reward is None else {"reward": said.reward})}
        for name, number in numbers.items():
            if not _is_finite(number):
                return f"{name} is {number!r}, expected a finite number"
        texts, body = [end.kind, said.reason, said.stop, said.first_version, said.last_version], end.body
    else:
        return f"the work came to {type(end).__name__}, expected HandedOff, Settled or GivenUp"
    if not isinstance(body, bytes):
        return f"the body is of type {type(body).__name__}, expected bytes"
    wrong = [text for text in texts if not isinstance(text, str)]
    return f"a text is {wrong[0]!r}" if wrong else ""


def _is_finite(number: object) -> bool:
    try:
        return math.isfinite(number)  # type: ignore[arg-type]  # any number will do, also one of numpy's
    except (TypeError, OverflowError):
        return False


def cancelled(reason: str) -> Settled:
    """The end of a job that was cancelled; the deadline has an outcome of its own."""
    outcome = Outcome.EXPIRED if reason == "deadline" else Outcome.CANCELLED
    return Settled(Settlement(outcome=outcome, reason=reason))


class JobControl:
    """One attempt as its work sees it: who it is, and whether it may go on."""

    def __init__(
        self, begun: Begun, held: Held, *, keep_turn: Callable[[JournalTurn], Awaitable[str]], is_cut_off: Callable[[], bool]
    ) -> None:
        self.begun = begun
        self.held = held
        self.cancel_reason = ""
        self.lease_lost = False
        self.is_silent = False
        self.concluded = False
        self.started_s = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.on_interrupted: Callable[[JobControl], None] | None = None
        """Told when a verdict interrupts the work (`pipeline/interruption.py`)."""
        self.on_answered: Callable[[End, str], None] | None = None
        """Told what Redis answered for the attempt's end, when that is the last of it here."""
        self.holds_slot = True
        self._to_take: list[Callable[[], Awaitable[None]]] = []
        self._keep_turn = keep_turn
        self._is_cut_off = is_cut_off
        self._promised_s = self.started_s + FIRST_PROGRESS_S

    def makes_progress(self, now_s: float) -> bool:
        """Whether the last promise still stands."""
        return now_s < self._promised_s

    def progress(self, within_s: float) -> None:
        """Promises the next sign of life within `within_s` seconds; the lease is renewed until then."""
        self._promised_s = time.monotonic() + within_s

    def gate(self) -> None:
        """Passed before each model or tool call.

        Raises:
            JobCancelled: the job was cancelled.
            LeaseLost: another attempt has the job, or there was no contact with Redis for two leases.
        """
        if self.cancel_reason:
            raise JobCancelled(self.held.job, self.cancel_reason)
        if self.lease_lost or self.is_silent or self._is_cut_off():
            raise LeaseLost(self.held.job, self.held.attempt)

    async def journal(self, index: int, body: bytes, sampled_tokens: int = 0) -> None:
        """Keeps a finished turn, in which the model sampled so many tokens.

        Raises:
            JobCancelled, LeaseLost: what the journal script answered.
        """
        word = await self._keep_turn(JournalTurn(self.held.job, self.held.attempt, index, body, sampled_tokens))
        if word == "0":
            self.lease_lost = True
        elif word != "1":
            self.cancel_reason = self.cancel_reason or word
        self.gate()

    def interrupted(self) -> End | None:
        """How an attempt ends that was interrupted: as cancelled, not at all (another has the job), failed, or handed back."""
        if self.cancel_reason:
            return cancelled(self.cancel_reason)
        if self.lease_lost:
            return None
        if self.is_silent:
            return GivenUp("failed", "no sign of life within the time it had promised")
        return GivenUp("back", "handed back: the worker stops, or had no contact with Redis")

    def verdict(self, word: str) -> None:
        """Takes what is said of this attempt (`lost`, `silent` or a cancel reason) and interrupts the work, once for each.

        Who cleans up after an interruption must not be interrupted by hearing the same again.
        """
        if word == LOST:
            heard, self.lease_lost = self.lease_lost, True
        elif word == SILENT:
            heard, self.is_silent = self.is_silent, True
        else:
            heard, self.cancel_reason = bool(self.cancel_reason), self.cancel_reason or word
        if not heard and self.task is not None:
            self.task.cancel()
            if self.on_interrupted is not None:
                self.on_interrupted(self)

    def on_left_behind(self, take: Callable[[], Awaitable[None]]) -> None:
        """Work says how to take from it what it holds, should it go on after its interruption."""
        self._to_take.append(take)

    def what_to_take(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """All that work said with `on_left_behind`."""
        return tuple(self._to_take)


Work = Callable[[JobControl], Awaitable[End]]


class Slots:
    """Room for jobs in a process, shared by its consumers on several shards.

    Args:
        total: most jobs at once.
        allowed: how many of them there may be now, where that changes; call `changed` when it grows.
    """

    def __init__(self, total: int, allowed: Callable[[], int] | None = None) -> None:
        self.total = total
        self.used = 0
        self._allowed = allowed
        self.idle_why = ""
        """Why none are claimed, in words, while that is so."""
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """Jobs that may be claimed now. None when fewer are allowed than are here: those stay."""
        most = self.total if self._allowed is None else min(self.total, self._allowed())
        return max(0, most - self.used)

    def changed(self) -> None:
        """More may be allowed now."""
        self._freed.set()

    def take(self, count: int) -> None:
        self.used += count

    def give_back(self, count: int) -> None:
        self.used -= count
        if count:
            self._freed.set()

    async def wait_free(self, wake_s: float) -> None:
        """Returns when a slot is free, or after `wake_s` seconds."""
        if self.free > 0:
            return
        self._freed.clear()
        try:
            async with asyncio.timeout(wake_s):
                await self._freed.wait()
        except TimeoutError:
            return
