"""Scripts of a node's launcher, and of who asks something of it. All of it stands on shard 0, whatever the number of shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.keys import DAY_MS, Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.replies import text, whole
from pipeline.scripts.runner import Arg, ScriptRunner

REMEMBERED_MS = DAY_MS
"""A node that is gone can be looked at for a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTaken:
    """Who has the name."""

    host: str
    pid: str
    beat_ms: int
    """Its last word."""
    lapses_s: float
    """Until the name is free, if it says no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What people asked of a node; empty = nothing."""

    sizes: tuple[str, str, str] = ("", "", "")
    """Of INIT, RUN, EVAL."""
    drain: bool = False


class NodeScripts:
    """Typed calls."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._run_script = ScriptRunner(client, Keys.of_shard(namespace, 0))

    async def take_node(self, node: str, boot: str, *, lease_ms: int, dead: str = "") -> NameTaken | None:
        """Takes the name; None when it is ours.

        Args:
            dead: a boot that is known to be dead; the name is taken from it.
        """
        reply = await self._run_script("take_node", node, boot, lease_ms, dead, REMEMBERED_MS)
        if reply[0] == b"ok":
            return None
        return NameTaken(host=text(reply[1]), pid=text(reply[2]), beat_ms=int(text(reply[3])), lapses_s=whole(reply[4]) / 1000)

    async def publish_node(self, node: str, boot: str, fields: Mapping[str, Arg], *, lease_ms: int, leaving: bool = False) -> Asked | str:
        """Says how a node stands.

        Args:
            fields: all of them, each time.
            leaving: the name is given up.

        Returns:
            What was asked of it; or, where another boot has the name now, that one's host.
        """
        words = [word for pair in fields.items() for word in pair]
        reply = await self._run_script("publish_node", node, boot, lease_ms, REMEMBERED_MS, int(leaving), *words, tries=1)
        if reply[0] != b"ok":
            return text(reply[1]) or "an unknown host"
        return Asked(sizes=(text(reply[1]), text(reply[2]), text(reply[3])), drain=text(reply[4]) == "1")

    async def ask_node(self, node: str, fields: Mapping[str, str]) -> tuple[str, int] | None:
        """Asks something of a node; None when its launcher will read it.

        Returns:
            Where nobody has the name: the last state that was told of it (empty: none), and when, ms.
        """
        reply = await self._run_script("ask_node", node, *(word for pair in fields.items() for word in pair))
        return None if reply[0] == b"ok" else (text(reply[1]), int(text(reply[2]) or 0))
