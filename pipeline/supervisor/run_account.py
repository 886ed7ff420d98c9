"""Reads what a run's account says: tokens by fate, its monitors, its steps. One reader for trainers and for all that people look at.

Everything was counted by the scripts; nothing is computed here that is not computed for the trainer too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.supervisor.monitors import Health, LengthBias, Starvation, length_bias, read_starvation, read_window
from pipeline.supervisor.token_fates import TokenFate

TOKENS = "tok."
"""Prefix of the run's counters."""
STEP_COUNTS = ("filtered", "dropped", "dead", "cancelled", "surplus", "stale")
"""Verdicts that a step counts beside the groups that joined it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitors:
    """What the monitors of a run say now."""

    length: LengthBias
    starvation: Starvation
    """Of the oldest open step, up to now."""
    shortage: str
    """What keeps the run from having enough groups at work just now (`Shortage`); empty = nothing."""

    @property
    def health(self) -> Health:
        """`warn` when one of them does."""
        return Health.WARN if Health.WARN in (self.length.health, self.starvation.health) else self.length.health

    def figures(self) -> dict[str, float]:
        """Flat numbers, named as in `step.metrics`."""
        return self.length.figures() | self.starvation.figures()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """A step as its hash has it."""

    index: int
    state: str
    """`open` or `reached`."""
    accepted: int
    target: int
    n: int
    counts: Mapping[str, int]
    """Groups by verdict, without those that joined."""
    redundant: int
    """Groups that were given up when it was reached."""
    tokens: Mapping[str, int]
    """By fate."""
    took_s: float | None
    """From opened to reached; None = it is open."""
    is_short: bool
    cancel_settled_s: float | None
    """As in `StepRecord`."""
    starvation: Starvation

    @property
    def is_open(self) -> bool:
        return self.state == "open"


def tokens_by_fate(found: Mapping[str, str], prefix: str = TOKENS) -> dict[str, int]:
    """The counters of a run's or step's hash, in the order of `TokenFate`; fates that have none are left out."""
    counts = {fate.value: int(found.get(prefix + fate.value) or 0) for fate in TokenFate}
    return {fate: count for fate, count in counts.items() if count}


async def read_monitors(client: AsyncClient, keys: Keys, run: str, head: Mapping[str, str]) -> Monitors:
    """The monitors of a run.

    Args:
        head: the run's hash.

    Raises:
        BrokerError: Redis does not answer, or not to this user.
    """
    window = read_window(await ask(client, "LRANGE", keys.window(run), 0, -1))
    first = texts(await ask(client, "HGETALL", keys.step(run, head["first"]))) if "first" in head else {}
    now_ms = await redis_now_ms(client)
    return Monitors(length=length_bias(window), starvation=_until_now(first, head, now_ms), shortage=head.get("short", ""))


async def read_steps(client: AsyncClient, keys: Keys, run: str, head: Mapping[str, str], *, last: int) -> list[StepAccount]:
    """The newest steps of a run, lowest index first: all that are open, and `last` that were reached.

    Raises:
        BrokerError: as above.
    """
    below = f"({head['first']}" if "first" in head else "+inf"
    words = await ask(client, "ZREVRANGEBYSCORE", keys.steps(run), below, "-inf", "LIMIT", 0, last) if last else []
    indices = [int(word) for word in reversed(words)]
    if "first" in head:
        indices += [int(word) for word in await ask(client, "ZRANGEBYSCORE", keys.steps(run), head["first"], "+inf")]
    now_ms = await redis_now_ms(client)
    steps = []
    for index in indices:
        found = texts(await ask(client, "HGETALL", keys.step(run, index)))
        if "target" in found:
            steps.append(_step(index, found, head, now_ms))
    return steps


def _step(index: int, found: Mapping[str, str], head: Mapping[str, str], now_ms: int) -> StepAccount:
    reached = found.get("reached")
    if reached is not None:
        starvation = read_starvation(found, watched_ms=int(reached) - int(found.get("front") or found["t"]))
    else:
        starvation = _until_now(found if str(index) == head.get("first") else {}, head, now_ms)
    return StepAccount(
        index=index,
        state=found.get("st", ""),
        accepted=int(found.get("acc") or 0),
        target=int(found["target"]),
        n=int(found["n"]),
        counts={verdict: int(found[verdict]) for verdict in STEP_COUNTS if verdict in found},
        redundant=int(found.get("redundant") or 0),
        tokens=tokens_by_fate(found, "tokens_"),
        took_s=(int(reached) - int(found["t"])) / 1000 if reached is not None else None,
        is_short=found.get("how") == "short",
        cancel_settled_s=int(found["cut_ms"]) / 1000 if found.get("cut_ms") else None,
        starvation=starvation,
    )


def _until_now(first: Mapping[str, str], head: Mapping[str, str], now_ms: int) -> Starvation:
    """Starvation of the oldest open step, with the interval that is going on."""
    if "t" not in first:
        return Starvation(watched_s=0.0, short_s={})
    fields = dict(first)
    if head.get("short"):
        name = f"short.{head['short']}"
        fields[name] = str(int(fields.get(name) or 0) + max(0, now_ms - int(head.get("short.t") or now_ms)))
    return read_starvation(fields, watched_ms=now_ms - int(first.get("front") or first["t"]))


def texts(flat: Mapping[bytes, bytes] | Sequence[bytes]) -> dict[str, str]:
    """A hash as text."""
    pairs = flat.items() if isinstance(flat, Mapping) else zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value.decode("utf-8", "replace") for name, value in pairs}
