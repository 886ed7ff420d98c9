"""What Redis says of nodes, read: fields are in docs/reference/keys.md. Needs to read only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.keys import NODE_NAME, Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.settings import QueueSettings

_PROCESS = re.compile(r"([a-z]+(?:-\d+)?):(\d+):(\w+)", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
MENDED_MS = 60_000
"""A process that has run for so long since its crash is well again (docs/adr/0027-node.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcess:
    """A process of a node."""

    name: str
    pid: int
    state: str
    """`up`, `waiting` (to be started again) or `stopping`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as its launcher last told of it."""

    name: str
    fields: Mapping[str, str]
    now_ms: int
    """Redis's clock when it was read."""

    def number(self, field: str) -> int | None:
        """A field that is a number; None when it is not there, or is none."""
        text = self.fields.get(field, "")
        return int(text) if _NUMBER.fullmatch(text) else None

    @property
    def state(self) -> str:
        """`starting`, `up`, `draining`, `failed`, `ended`, or `lost` when it fell silent without having ended."""
        told = self.fields.get("state", "")
        has_name = bool(self.fields.get("boot"))
        return "lost" if has_name and not self.has_spoken else told or "unknown"

    @property
    def has_spoken(self) -> bool:
        """Within its lease."""
        return (self.number("beat") or 0) + (self.number("lease") or 0) >= self.now_ms

    @property
    def is_alive(self) -> bool:
        """A launcher has the name and speaks."""
        return bool(self.fields.get("boot")) and self.has_spoken

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"

    @property
    def has_failed(self) -> bool:
        """A crash has ended it, or ends it now, and its time is not over: it is missed until a launcher takes its name."""
        by_crash = self.state == "failed" and bool(self.fields.get("failed"))
        return by_crash and (self.left_ms is None or self.left_ms > 0)

    @property
    def has_ended(self) -> bool:
        """Nobody misses it: it was to end, though a process may have been killed in the drain."""
        return self.state == "ended" or (self.state == "failed" and not self.is_alive and not self.has_failed)

    @property
    def crash_stands(self) -> bool:
        """Its last crash is not mended: it has ended by it, or what crashed is not there again, or for less than a minute."""
        name, at_ms = self.fields.get("crash.name", ""), self.number("crash.at") or 0
        is_back = any(each.name == name and each.state == "up" for each in self.processes) and self.now_ms - at_ms > MENDED_MS
        return bool(name) and (self.has_failed or (self.is_alive and not is_back))

    @property
    def last_line(self) -> str:
        """Of what crashed last; empty when nothing did, or it said nothing."""
        return (self.fields.get("crash.tail", "").strip().splitlines() or [""])[-1]

    @property
    def silent_ms(self) -> int:
        """Since its last word."""
        return max(0, self.now_ms - (self.number("beat") or self.now_ms))

    @property
    def left_ms(self) -> int | None:
        """Until its end, if one is known. Its clock and Redis's differ by `skew_ms`."""
        until, skew = self.number("until"), self.skew_ms
        return None if until is None else until - self.now_ms - (skew or 0)

    @property
    def skew_ms(self) -> int | None:
        """Its clock less Redis's; a beat takes some milliseconds, so little means nothing."""
        clock, beat = self.number("clock"), self.number("beat")
        return None if clock is None or beat is None else clock - beat

    @property
    def processes(self) -> list[NodeProcess]:
        return [
            NodeProcess(name=found[1], pid=int(found[2]), state=found[3])
            for word in self.fields.get("procs", "").split()
            if (found := _PROCESS.fullmatch(word))
        ]

    def size(self, stage: Stage) -> str:
        """That it is to have."""
        return self.fields.get(f"size.{stage.value}", "")

    def slots(self, stage: Stage) -> int:
        """That take jobs now."""
        return self.number(f"slots.{stage.value}") or 0


async def read_nodes(client: AsyncClient, settings: QueueSettings) -> list[NodeView]:
    """All nodes that had a launcher within a day, by name."""
    keys = Keys.of_shard(settings.namespace, 0)
    names = sorted(name.decode("utf-8", "replace") for name in await ask(client, "ZRANGE", keys.launchers, 0, -1))
    found = [await read_node(client, settings, name) for name in names]
    return [view for view in found if view is not None]


async def read_node(client: AsyncClient, settings: QueueSettings, name: str) -> NodeView | None:
    """One node; None when nobody told of it within a day."""
    if not NODE_NAME.fullmatch(name):
        return None
    keys = Keys.of_shard(settings.namespace, 0)
    words = await ask(client, "HGETALL", keys.launched_node(name))
    fields = {field.decode("utf-8", "replace"): value.decode("utf-8", "replace") for field, value in words.items()}
    return NodeView(name=name, fields=fields, now_ms=await redis_now_ms(client)) if fields else None
