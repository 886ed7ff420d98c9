"""One run, all of it that fits a page: for `rollstream run show`. Read only; every figure was counted by the scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ops.look import RunLook, look_at_run
from pipeline.errors import RollstreamError
from pipeline.inference_pool.state import read_state
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.run_account import Monitors, StepAccount, read_monitors, read_steps, texts
from pipeline.wait_reasons import WaitReasons

LAST_STEPS = 8
"""Reached steps that a page shows."""


class UnknownRun(RollstreamError):
    """Redis does not know the run: it never was, or its time to live ran out."""

    def __init__(self, run: str) -> None:
        super().__init__(f"no run {run!r}: it never was, or its time to live ran out; rollstream run list names those that are")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What there is to say about a run."""

    look: RunLook
    prompts: Mapping[str, int]
    """Pushed, and those that are done with by how."""
    parked: int
    """Informative groups that wait for a step."""
    monitors: Monitors
    steps: tuple[StepAccount, ...]
    """The last that were reached, and the open ones."""
    why_waiting: tuple[str, ...]
    """Sentences."""
    unread: int = 0
    """Records in its results that its trainer has not acknowledged."""
    oldest_unread_s: float = 0.0
    """Age of the oldest of them."""
    awaiting: int = 0
    """Jobs that await a reward from outside, or their group's hook."""
    servers: Mapping[str, int] = field(default_factory=dict)
    """Model servers by how they stand."""

    def as_map(self) -> dict[str, object]:
        """For JSON: as the fields, the run's own at the top, and the monitors' figures under their names in `step.metrics`."""
        length = asdict(self.monitors.length) | {"health": self.monitors.length.health.value}
        starvation = {
            "watched_s": self.monitors.starvation.watched_s,
            "short_s": dict(self.monitors.starvation.short_s),
            "share": self.monitors.starvation.share,
            "health": self.monitors.starvation.health.value,
            "now": self.monitors.shortage,
        }
        return {
            **asdict(self.look),
            "prompts": dict(self.prompts),
            "parked": self.parked,
            "unread": self.unread,
            "oldest_unread_s": self.oldest_unread_s,
            "awaiting": self.awaiting,
            "servers": dict(self.servers),
            "monitors": {
                "health": self.monitors.health.value,
                "length": length,
                "starvation": starvation,
                "figures": self.monitors.figures(),
            },
            "steps": [asdict(step) | {"starved_share": step.starvation.share} for step in self.steps],
            "why_waiting": list(self.why_waiting),
        }


async def report_on(client: AsyncClient, settings: QueueSettings, keys: Keys, run: str) -> RunReport:
    """Reads it all.

    Raises:
        UnknownRun
        BrokerError: Redis does not answer, or not to this user.
    """
    look = await look_at_run(client, keys, run)
    head = texts(await ask(client, "HGETALL", keys.run(run)))
    if look is None or not head:
        raise UnknownRun(run)
    oldest = await ask(client, "XRANGE", keys.results(run), "-", "+", "COUNT", 1)
    written_ms = int(oldest[0][0].partition(b"-")[0]) if oldest else 0
    pool = await read_state(client, keys.pool, run)
    prefix = "prompts."
    reasons = WaitReasons(client, keys, run, namespace=settings.namespace, max_unread=settings.max_unread)
    return RunReport(
        look=look,
        prompts={name.removeprefix(prefix): int(value) for name, value in head.items() if name.startswith(prefix)},
        parked=int(await ask(client, "ZCARD", keys.parked(run))),
        monitors=await read_monitors(client, keys, run, head),
        steps=tuple(await read_steps(client, keys, run, head, last=LAST_STEPS)),
        unread=int(await ask(client, "XLEN", keys.results(run))),
        oldest_unread_s=max(0.0, (pool.now_ms - written_ms) / 1000) if oldest else 0.0,
        awaiting=int(await ask(client, "ZCARD", keys.awaiting(run))),
        servers=dict(Counter(server.standing for server in pool.servers)),
        why_waiting=tuple(map(str, await reasons.of_run())),
    )
