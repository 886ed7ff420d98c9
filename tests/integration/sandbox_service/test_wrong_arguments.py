"""Every field of every operation with values of every wrong type: an answer that says so, nothing is done, and the service lives.

`OPERATIONS` of the service names what there is; an operation that this table does not know fails here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.integration.sandbox_life.nodes import an_owner
from tests.integration.sandbox_service.nodes import PLAIN
from tests.integration.sandbox_service.peers import RawPeer, peer
from workers.sandbox.service import RemoteSandboxes
from workers.sandbox.service.operations import OPERATIONS
from workers.sandbox.service.wire import CANCELLED, INVALID, KINDS, Message

SEED = 20261130
MESSAGES = 150

TRAP = "touch trap"
"""A command that leaves a file."""
OWNER = {"job_id": "job", "attempt": 1, "boot_id": "b"}
HANDLE = {"backend": "process", "node": "here", "sandbox_id": "0123456789-1-abcdef", "folder": "/x", "token": "t"}
SNAPSHOT = {"backend": "process", "node": "here", "snapshot_id": "0123456789-1-abcdef", "folder": "/x", "token": "t"}
LIMITS: dict[str, object] = {
    "cpu_s": 10,
    "memory_bytes": 2**30,
    "open_files": 300,
    "processes": 50,
    "nice": 1,
    "disk_bytes": 2**30,
    "files": 100,
}
SPEC = {"isolation": "none", "image": "", "workdir": "", "env": {"A": "1"}, "limits": LIMITS}

TEXT, TEXTS, BYTES, WHOLE, NUMBER = "text", "texts", "bytes", "whole", "number"
MAYBE, TRUTH, MAP, ASKED, COMMAND = "maybe", "truth", "map", "asked", "command"
FIELDS: dict[str, dict[str, tuple[str, object]]] = {
    "start": {"spec": (ASKED, SPEC), "owner": (MAP, OWNER)},
    "attach": {"handle": (MAP, HANDLE), "owner": (MAP, OWNER)},
    "restore": {"snapshot": (MAP, SNAPSHOT), "owner": (MAP, OWNER)},
    "drop": {"snapshot": (MAP, SNAPSHOT), "owner": (MAP, OWNER)},
    "snapshot": {},
    "use": {},
    "park": {},
    "stop": {"grace_s": (NUMBER, 0.5)},
    "kill": {},
    "exec": {
        "command": (COMMAND, TRAP),
        "stdin": (BYTES, b""),
        "cwd": (TEXT, ""),
        "env": (MAYBE, {"A": "1"}),
        "timeout_s": (NUMBER, 5.0),
        "max_output_bytes": (WHOLE, 1000),
    },
    "upload": {"folder": (TEXT, "."), "max_bytes": (WHOLE, 1000)},
    "download": {"path": (TEXT, "."), "max_bytes": (WHOLE, 1000)},
    "read_file": {"path": (TEXT, "x"), "max_bytes": (WHOLE, 1000)},
    "write_file": {"path": (TEXT, "trap"), "content": (BYTES, b"x"), "executable": (TRUTH, False)},
    "list": {"path": (TEXT, ".")},
    "shell.run": {
        "name": (TEXT, "main"),
        "command": (TEXT, TRAP),
        "timeout_s": (NUMBER, 5.0),
        "no_change_timeout_s": (MAYBE, 5.0),
        "max_output_bytes": (WHOLE, 1000),
        "stdin": (TEXT, "null"),
    },
    "shell.wait": {
        "name": (TEXT, "main"),
        "timeout_s": (NUMBER, 5.0),
        "no_change_timeout_s": (MAYBE, 5.0),
        "max_output_bytes": (WHOLE, 1000),
    },
    "shell.send": {"name": (TEXT, "main"), "text": (TEXT, f"{TRAP}\n")},
    "shell.interrupt": {"name": (TEXT, "main")},
    "shell.close": {"name": (TEXT, "main")},
    "kernel.run": {
        "name": (TEXT, "main"),
        "code": (TEXT, "open('trap', 'w')"),
        "timeout_s": (NUMBER, 5.0),
        "max_output_bytes": (WHOLE, 1000),
    },
    "kernel.interrupt": {"name": (TEXT, "main")},
    "kernel.restart": {"name": (TEXT, "main")},
    "kernel.close": {"name": (TEXT, "main")},
    "probe": {},
    "settle": {},
    "owners": {},
    "views": {"prefix": (TEXT, ""), "processes": (TRUTH, False)},
    "end": {"sandboxes": (TEXTS, []), "why": (TEXT, "w")},
}
"""By operation: its fields, each with what it should be and a value that would do."""

LEFT_OUT = object()
VALUES: list[object] = [
    LEFT_OUT,
    None,
    True,
    7,
    -(2**63),
    1.5,
    math.nan,
    math.inf,
    "text",
    b"\xff\x00",
    [],
    ["a", 1],
    ["a", b"b"],
    {},
    {"a": 1},
    {b"a": "b"},
    {"a": {"b": [None]}},
    msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(1),
]


NO_TEXTS: tuple[object, ...] = (None, 7, b"x", [], {})
NO_WHOLE_NUMBERS: tuple[object, ...] = (None, "9", 1.5, True, [9])
NO_VARIABLES: tuple[object, ...] = (None, [], {"A": 1}, {"A": b"1"}, {b"A": "1"}, {"A": None})


def is_right(kind: str, value: object) -> bool:
    """Whether a value is of the type that a field has; what it means is another matter."""
    if kind == MAYBE:
        return value is None or value is LEFT_OUT or value == {} or (isinstance(value, int | float) and not isinstance(value, bool))
    if kind == ASKED:  # all of it has defaults, and what a newer worker asks for is not known
        return isinstance(value, dict)
    if kind == COMMAND:
        return isinstance(value, str) or value == []
    if kind == TEXTS:
        return value == []
    if kind in (NUMBER, WHOLE):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole or (kind == NUMBER and isinstance(value, float) and math.isfinite(value))
    wanted: dict[str, type] = {TEXT: str, BYTES: bytes, TRUTH: bool, MAP: tuple}
    return isinstance(value, wanted[kind])


def with_field(op: str, field: str, value: object) -> Message:
    message = {"op": op, **{name: right for name, (_, right) in FIELDS[op].items()}, field: value}
    if value is LEFT_OUT:
        del message[field]
    return message


def wrong_calls() -> Iterator[Message]:
    for op, fields in FIELDS.items():
        for field, (kind, _) in fields.items():
            yield from (with_field(op, field, value) for value in VALUES if not is_right(kind, value))
            if kind in (NUMBER, MAYBE) and field.endswith("_s"):
                yield from (with_field(op, field, value) for value in (math.nan, math.inf, -math.inf))


def wrong_records() -> Iterator[Message]:
    """Calls whose records hold one field of a wrong type, one level down and two."""
    texts: dict[str, tuple[str, ...]] = {
        "owner": ("job_id", "boot_id"),
        "handle": tuple(HANDLE),
        "snapshot": tuple(SNAPSHOT),
        "spec": ("image", "workdir"),
    }
    for op in ("start", "attach", "restore", "drop"):
        for field, (_, right) in FIELDS[op].items():
            assert isinstance(right, dict)
            for name in texts[field]:
                yield from (with_field(op, field, {**right, name: value}) for value in NO_TEXTS)
    yield from (with_field("start", "owner", {**OWNER, "attempt": attempt}) for attempt in NO_WHOLE_NUMBERS)
    yield from (with_field("start", "spec", {**SPEC, "isolation": isolation}) for isolation in (*NO_TEXTS, "walls"))
    yield from (with_field("start", "spec", {**SPEC, "env": env}) for env in NO_VARIABLES)
    wrong_limits: list[dict[str, object]] = [{name: value} for name in LIMITS for value in NO_WHOLE_NUMBERS]
    wrong_limits += [{"open_files": 3}, {"processes": 1}, {"cpu_s": 0}, {"memory_bytes": -1}]
    for limit in wrong_limits:
        yield with_field("start", "spec", {**SPEC, "limits": {**LIMITS, **limit}})


async def nothing_was_done(raw: RawPeer, remote: RemoteSandboxes) -> None:
    raw.send({"id": 10**6, "op": "list", "path": "."})
    assert (await raw.answer(10**6))["ok"] == []
    assert len(await remote.views()) == 1


def test_every_operation_is_tried() -> None:
    assert FIELDS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("calls", [wrong_calls, wrong_records])
async def test_a_value_of_a_wrong_type_is_said_to_be_one_and_nothing_is_done(calls: Any, remote: RemoteSandboxes, place: Path) -> None:
    """A time limit that is no number stopped the loop of the service, and with it every sandbox of the node."""
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        for number, call in enumerate(calls(), start=2):
            raw.send({"id": number, **call})

            answer = await raw.answer(number)

            assert answer.get("error", {}).get("kind") == INVALID, f"{call} was answered by {answer}"
        await nothing_was_done(raw, remote)


async def test_the_right_values_would_do(remote: RemoteSandboxes, place: Path) -> None:
    """Or the tests above would pass for a table that is wrong throughout."""
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        asked = [op for op in FIELDS if op not in ("kill", "park", "stop", "kernel.run", "kernel.restart")]
        for number, op in enumerate([*asked, "stop"], start=2):
            raw.send({"id": number, "op": op, **{name: right for name, (_, right) in FIELDS[op].items()}})
            raw.send({"id": number, "end": 1})

            answer = await raw.answer(number)

            assert answer.get("error", {}).get("kind") != INVALID, f"{op} was answered by {answer}"


def anything(chance: random.Random, depth: int = 0) -> object:
    """Some value that msgpack can carry."""
    simple = [value for value in VALUES if value is not LEFT_OUT]
    simple += ["", "\x00", "\ud800", "../..", "/", "~", "main", "x" * 5000, 2**64 - 1, -1, 0, -0.0, 1e308, b"", b"x" * 5000]
    pick = chance.randrange(4 if depth < 3 else 2)
    if pick == 2:
        return [anything(chance, depth + 1) for _ in range(chance.randrange(4))]
    if pick == 3:
        return {chance.choice(["", "a", "job_id", "limits", "\x00"]): anything(chance, depth + 1) for _ in range(chance.randrange(4))}
    return chance.choice(simple)


async def test_whatever_comes_has_an_answer_that_is_no_fault_of_the_service(remote: RemoteSandboxes, place: Path) -> None:
    """Values of the right type that make no sense, and nonsense; a fixed seed, so that a failure can be repeated."""
    chance = random.Random(SEED)
    known = {*KINDS, INVALID, CANCELLED}
    quick = [op for op in FIELDS if op not in ("kernel.run", "kernel.restart", "stop", "kill", "park", "probe")]
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        for number in range(2, MESSAGES):
            op = chance.choice(quick)
            call = {"op": op, **{name: right for name, (_, right) in FIELDS[op].items()}}
            for name in FIELDS[op]:
                if chance.random() < 0.4 and not (name == "command" or name.endswith("_s")):
                    call[name] = anything(chance)
            call |= {"command": "true", "code": "1"} if "command" in call or "code" in call else {}
            raw.send({"id": number, **call})
            raw.send({"id": number, "end": 1})

            answer = await raw.answer(number)

            assert "ok" in answer or answer["error"]["kind"] in known, f"{call} was answered by {answer}"
        raw.send({"id": 10**6, "op": "exec", **{name: right for name, (_, right) in FIELDS["exec"].items()}, "command": "echo hi"})
        assert (await raw.answer(10**6))["ok"]["stdout"] == b"hi\n"
