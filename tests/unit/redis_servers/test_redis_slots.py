"""Which node a command goes to."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from pipeline.keys import Keys
from pipeline.redis_slots import SlotMap, guarded, key_of, slot_of

KEYS = Keys.of_shard("rs", 0)
ABOUT: list[tuple[tuple[Any, ...], str | bytes | None]] = [
    (("EVALSHA", "sha", 1, KEYS.meta, "word"), KEYS.meta),
    (("EVAL", "text", 0, "word"), None),
    (("HGETALL", b"{rs:0}:j:1"), b"{rs:0}:j:1"),
    (("XREADGROUP", "GROUP", "init", "w", "COUNT", 1, "BLOCK", 10, "STREAMS", KEYS.key("s:init"), ">"), KEYS.key("s:init")),
    (("XREAD", "COUNT", 1, b"streams", KEYS.cancel, "$"), KEYS.cancel),
    (("XINFO", "GROUPS", KEYS.cancel), KEYS.cancel),
    (("XINFO GROUPS", KEYS.cancel), KEYS.cancel),
    (("MEMORY", "USAGE", KEYS.meta), KEYS.meta),
    (("SCAN", "0", "MATCH", "{rs:0}:w:*"), "{rs:0}:w:*"),
    (("SCAN", "0", b"MATCH", "[{]rs:0}:w:*", b"COUNT", 500), "{rs:0}:w:*"),
    (("TIME",), None),
    (("INFO", "memory"), None),
]


@pytest.mark.parametrize(("words", "key"), ABOUT, ids=lambda value: str(value[0]) if isinstance(value, tuple) else "")
def test_the_key_that_a_command_is_about(words: tuple[Any, ...], key: str | bytes | None) -> None:
    assert key_of(words) == key


def test_a_script_gets_a_second_key_of_the_same_slot_that_nobody_writes() -> None:
    assert guarded(("EVALSHA", "sha", 1, KEYS.meta, "a", "b")) == ("EVALSHA", "sha", 2, KEYS.meta, "{rs:0}:absent", "a", "b")
    assert slot_of("{rs:0}:absent") == slot_of(KEYS.meta)
    assert guarded(("HGETALL", KEYS.meta)) == ("HGETALL", KEYS.meta)


def test_a_slot_is_known_from_who_said_so_last() -> None:
    slots = SlotMap([("seed", 1)])
    assert slots.is_stale

    slots.learn([[0, 8191, [b"a", 1, b"id"], [b"b", 2, b"id"]], [8192, 16383, [b"", 3, b"id"]]], ("seed", 1))
    assert (slots.owner(8191), slots.owner(8192), slots.is_stale) == (("a", 1), ("seed", 3), False)
    slots.moved(8191, ("c", 4))
    assert (slots.owner(8190), slots.owner(8191)) == (("a", 1), ("c", 4))


def test_a_node_that_did_not_answer_is_asked_last() -> None:
    slots = SlotMap([("seed", 1)])
    slots.learn([[0, 16383, [b"a", 1, b"id"], [b"b", 2, b"id"]]], ("seed", 1))

    slots.mistrust(("a", 1))

    assert slots.is_stale
    assert slots.nodes == (("b", 2), ("seed", 1), ("a", 1))


def test_a_slot_that_nobody_serves_has_no_owner() -> None:
    slots = SlotMap([("seed", 1)])
    slots.learn([[0, 100, [b"a", 1, b"id"]]], ("seed", 1))

    with pytest.raises(redis.ConnectionError, match="no node of the Cluster serves slot 101"):
        slots.owner(101)
    assert slots.is_stale
    assert slots.masters() == {("a", 1): [(0, 100)]}
