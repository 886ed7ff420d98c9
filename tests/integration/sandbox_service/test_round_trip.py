"""What comes out on the worker's side is what went in on the service's: every error, every result, every argument.

The classes are found by looking, so that a new one fails here until it travels.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from pipeline import codec
from pipeline.errors import RollstreamError
from workers.sandbox import base, errors, results, spec, use
from workers.sandbox.errors import SandboxError, SandboxStartError
from workers.sandbox.service import client, node, operations, views, wire
from workers.sandbox.service.wire import KINDS, error_from_map, error_to_map, pack, unpack

ARGUMENTS: dict[str, object] = {
    "attempt": 3,
    "backend": "bubblewrap",
    "detail": "the last it printed\n",
    "image": "registry/with:tag",
    "kind": "kernel",
    "mounts": ("/a/b", "/c"),
    "path": "a/\udcff/b",
    "pids": (7, 8),
    "sandbox_id": "0123456789-1-abcdef",
    "seen": 4,
    "snapshot_id": "0123456789-1-abcdef",
    "stderr": b"\xff\x00",
    "stdout": b"\x00" * 70_000,
    "timeout_s": 2.5,
    "trouble": "too_large",
    "what": "command",
    "why": "it was so",
}
"""By name of a constructor's argument."""


def error_classes() -> list[type[RollstreamError]]:
    """The tree of `workers/sandbox/errors.py`."""
    ours = (cls for cls in vars(errors).values() if inspect.isclass(cls) and cls.__module__ == errors.__name__)
    return sorted((cls for cls in ours if issubclass(cls, RollstreamError)), key=lambda cls: cls.__qualname__)


def made(cls: type[RollstreamError]) -> RollstreamError:
    if "__init__" not in {name for each in cls.__mro__[: cls.__mro__.index(RollstreamError)] for name in vars(each)}:
        return cls("it was so")
    wanted = [name for name, each in inspect.signature(cls).parameters.items() if each.kind is not each.KEYWORD_ONLY]
    assert set(wanted) <= ARGUMENTS.keys(), f"{cls.__name__} has an argument that this test has no example of"
    return cls(*(ARGUMENTS[name] for name in wanted))


def over_the_wire(message: wire.Message) -> wire.Message:
    return unpack(pack(message))


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_travels(cls: type[RollstreamError]) -> None:
    error = made(cls)

    told = error_from_map(over_the_wire(error_to_map(error)))

    assert type(told) is cls, f"{cls.__name__} has no word in KINDS"
    assert isinstance(told, RollstreamError)
    assert str(told) == str(error)
    assert vars(told) == vars(error)
    assert getattr(told, "retryable", None) == getattr(error, "retryable", None)


def test_every_word_is_of_an_error_of_the_tree() -> None:
    assert set(KINDS.values()) == set(error_classes())
    assert len(KINDS) == len(error_classes())


def test_what_an_instance_says_of_itself_travels_too() -> None:
    """Whether a start may be tried again is not a matter of its class."""
    told = error_from_map(over_the_wire(error_to_map(SandboxStartError("process", "no", retryable=False))))

    assert isinstance(told, SandboxStartError)
    assert not told.retryable


def test_an_error_with_what_cannot_travel_travels_without_it() -> None:
    """One field that msgpack does not know, and the call would never have been answered."""

    class Odd(SandboxError):
        def __init__(self) -> None:
            super().__init__("odd")
            self.path, self.cause, self.pids = Path("/x"), ValueError("y"), (1, 2)

    told = error_from_map(over_the_wire(error_to_map(Odd())))

    assert (type(told), str(told), vars(told)) == (SandboxError, "odd", {"pids": (1, 2)})


@pytest.mark.parametrize("values", [{}, {"kind": 7}, {"kind": "of tomorrow", "text": "t"}, {"kind": "gone", "text": None, "fields": [1]}])
def test_an_error_of_another_version_is_an_error(values: dict[str, object]) -> None:
    told = error_from_map(values)

    assert isinstance(told, SandboxError)
    assert str(told)


def result_classes() -> list[type[Any]]:
    """What methods of a sandbox, and of what is in it, answer; and what the service answers agents and people."""
    found: set[Any] = {cls for cls in vars(results).values() if dataclasses.is_dataclass(cls)}
    for holder in (base.Sandbox, base.Shell, base.Kernel, base.SandboxProvider, client.RemoteSandboxes):
        for method in vars(holder).values():
            if inspect.isfunction(method):
                found |= set(records_in(get_type_hints(method, vars(inspect.getmodule(holder))).get("return")))
    return sorted(found, key=lambda cls: str(cls.__qualname__))


def records_in(hint: object) -> Iterator[type[Any]]:
    if inspect.isclass(hint) and dataclasses.is_dataclass(hint):
        yield hint
        for inner in get_type_hints(hint).values():
            yield from records_in(inner)
    for inner in typing.get_args(hint):
        yield from records_in(inner)


def example(hint: Any) -> Any:
    """Some value of a type, none of it what a field has by default."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return args[-1]
    if origin in (types.UnionType, typing.Union):
        return example(args[0])
    if origin is tuple:
        return (example(args[0]),) * 2
    if origin in (list, frozenset):
        return origin([example(args[0])])
    if origin is not None and issubclass(origin, typing.Mapping):
        return {example(args[0]): example(args[1])}
    if hint is spec.Isolation:
        return spec.Isolation.ISOLATED
    if dataclasses.is_dataclass(hint):
        assert inspect.isclass(hint)
        hints = get_type_hints(hint)
        return hint(**{field.name: example(hints[field.name]) for field in dataclasses.fields(hint)})
    values: dict[Any, Any] = {str: "t\udcff\n", bytes: b"\x00\xff", int: 2**40, float: 0.1, bool: True, object: "any"}
    return values[hint]


@pytest.mark.parametrize("cls", result_classes(), ids=lambda cls: cls.__name__)
def test_every_result_travels(cls: type[Any]) -> None:
    result = example(cls)

    travelled = over_the_wire({"ok": codec.to_map(result)})["ok"]

    assert codec.from_map(cls, travelled) == result
    assert codec.from_map(cls, {**travelled, "of_tomorrow": 1}) == result


@pytest.mark.parametrize("cls", [spec.SandboxSpec, spec.SandboxOwner, spec.Limits], ids=lambda cls: cls.__name__)
def test_every_record_that_is_asked_with_travels(cls: type[Any]) -> None:
    record = example(cls)

    assert codec.from_map(cls, over_the_wire({"record": record})["record"]) == record


def test_the_results_are_found() -> None:
    wanted = {results.ExecResult, results.ShellResult, results.KernelResult, results.FileEntry, use.SandboxUse, spec.SandboxHandle}

    assert wanted | {base.Probe, node.OwnedSandbox, node.EndReport, views.SandboxView} <= set(result_classes())


def test_the_interface_and_the_operations_are_one() -> None:
    """Whatever can be asked of a sandbox can be asked over the wire."""
    own = {"shell", "kernel", "wait_gone", "close"}  # made on this side, heard without asking, or what the end of a connection means
    asked = {name for holder in (base.Sandbox, base.SandboxProvider) for name in public_methods(holder)}
    asked |= {f"shell.{name}" for name in public_methods(base.Shell)} | {f"kernel.{name}" for name in public_methods(base.Kernel)}

    assert asked - own <= operations.OPERATIONS.keys()


def public_methods(holder: type[Any]) -> set[str]:
    return {name for name, method in vars(holder).items() if inspect.isfunction(method) and not name.startswith("_")}
