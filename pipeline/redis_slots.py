"""Which key a command is about, and which node of a Cluster has it. Pure: the clients that act on it are in `redis_cluster.py`.

A slot is known from the node that said so last: the map that any node gives, or MOVED of the one that was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import redis
from redis.crc import key_slot

from pipeline.redis_address import Node

SLOTS = 16_384
_KEYLESS = frozenset(
    {"ACL", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "INFO", "LASTSAVE", "LATENCY", "PING"}
    | {"ROLE", "SCRIPT", "SLOWLOG", "TIME", "WAIT"}
)
_SCRIPT_CALLS = frozenset(("EVALSHA", "EVAL"))
_KEY_AFTER_VERB = frozenset(("XINFO", "XGROUP", "MEMORY", "OBJECT"))
_KEY_AFTER_STREAMS = frozenset(("XREAD", "XREADGROUP"))


def key_of(words: Sequence[Any]) -> str | bytes | None:
    """The first key that a command names; of a SCAN the pattern, whose tag is that of its keys; None when it is about no key.

    Any: a command's words are text, bytes and numbers, as its caller has them.
    """
    name = words[0]
    if name in _SCRIPT_CALLS:
        return _word(words[3]) if int(words[2]) else None
    if name in _KEYLESS:
        return None
    if name in _KEY_AFTER_STREAMS:
        return _word(words[[_text(word).upper() for word in words].index("STREAMS") + 1])
    if name in _KEY_AFTER_VERB:
        return _word(words[2]) if len(words) > 2 else None
    if name == "SCAN":
        found = [_text(word) for word in words]
        return found[found.index("MATCH") + 1].replace("[{]", "{") if "MATCH" in found else None
    return _word(words[1]) if len(words) > 1 else None


def guarded(words: tuple[Any, ...]) -> tuple[Any, ...]:
    """A script's call with a second key that never exists: while its slot is being moved no node begins it (ADR 29, decision 5)."""
    if words[0] not in _SCRIPT_CALLS or int(words[2]) != 1:
        return words
    return (words[0], words[1], 2, words[3], _text(words[3]).split("}", 1)[0] + "}:absent", *words[4:])


def slot_of(key: str | bytes) -> int:
    """The slot of a key."""
    return key_slot(key.encode() if isinstance(key, str) else key)


class SlotMap:
    """What is known of a Cluster.

    Args:
        seeds: nodes to ask at first.
    """

    def __init__(self, seeds: Iterable[Node]) -> None:
        self._owners: list[Node | None] = [None] * SLOTS
        self._seeds = tuple(seeds)
        self._nodes = list(self._seeds)
        self.is_stale = True
        """Whether somebody should be asked before the next command."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Whom to ask, in this order."""
        return tuple(self._nodes)

    def owner(self, slot: int) -> Node:
        """The master of a slot.

        Raises:
            redis.ConnectionError: nobody serves it. The map is stale then.
        """
        owner = self._owners[slot]
        if owner is None:
            self.is_stale = True
            raise redis.ConnectionError(f"no node of the Cluster serves slot {slot}")
        return owner

    def masters(self) -> dict[Node, list[tuple[int, int]]]:
        """Each master, with first and last of its ranges of slots."""
        found: dict[Node, list[tuple[int, int]]] = {}
        for owner, slots in groupby(range(SLOTS), key=self._owners.__getitem__):
            mine = list(slots)
            if owner is not None:
                found.setdefault(owner, []).append((mine[0], mine[-1]))
        return found

    def learn(self, reply: Any, asked: Node) -> None:
        """Takes what a node answered to CLUSTER SLOTS: rows of first slot, last slot, master and replicas, each with host and port."""
        self._owners = [None] * SLOTS
        told: list[Node] = []
        for first, last, *nodes in reply:
            placed = [(_text(host) or asked[0], int(port)) for host, port, *_ in nodes]
            self._owners[first : last + 1] = placed[:1] * (last + 1 - first)
            told += placed
        self._nodes = list(dict.fromkeys((*told, *self._seeds)))
        self.is_stale = False

    def moved(self, slot: int, owner: Node) -> None:
        """A node said that a slot is another's."""
        self._owners[slot] = owner
        if owner not in self._nodes:
            self._nodes.append(owner)

    def mistrust(self, node: Node) -> None:
        """A node did not answer, or not as one that serves: others are asked first."""
        self.is_stale = True
        if node in self._nodes:
            self._nodes.remove(node)
            self._nodes.append(node)


def unread_map(reasons: Mapping[Node, Exception]) -> redis.ConnectionError:
    """What to raise when no node told its map."""
    told = "; ".join(f"{host}:{port}: {str(error) or 'no answer'}" for (host, port), error in reasons.items())
    return redis.ConnectionError(f"no node of the Cluster tells its slots: {told}")


def _word(word: Any) -> str | bytes:
    return word if isinstance(word, bytes) else str(word)


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
