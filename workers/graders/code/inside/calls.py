"""Calls one function of the program, with the arguments given, and writes down what it returned; comes after `runner.py`."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from workers.graders.code.inside.plain import NotPlain, from_plain, to_plain
    from workers.graders.code.inside.runner import PROGRAMS, prepared, write_all

USUAL_MODULES = (
    *("typing", "collections", "math", "heapq", "itertools", "functools", "bisect", "string", "re", "random", "operator", "copy", "sys"),
    *("datetime", "statistics", "json", "decimal", "fractions"),
)
"""What solutions of the task's kind take for granted: the modules, and ..."""
USUAL_NAMES_OF = ("typing", "collections", "heapq", "itertools", "functools", "bisect", "math")
"""... the public names of these."""


def run_call(order: dict[str, str], program: bytes, given: bytes, files: dict[str, int]) -> None:
    """Calls one function of the program with the arguments given, and writes down what it returned."""
    import json

    code, names = prepared(program, files, "solution")  # what stands under `__name__ == "__main__"` is not asked for
    dumps = json.dumps
    arguments = from_plain(json.loads(given.decode()))
    give_usual_names(code, names)
    exec(code, names)
    returned = entry_of(names, order["entry"])(*arguments)
    try:
        answer = {"value": to_plain(returned)}
    except NotPlain as refused:
        answer = {"not_plain": str(refused)}
    write_all(files["result"], dumps(answer).encode())
    sys.stdout.flush()
    os._exit(0)


def entry_of(names: dict[str, Any], entry: str) -> Callable[..., Any]:
    """The function: of the module, or a method of a new object of its class; `Solution` where the entry names no class."""
    class_name, _, function = entry.rpartition(".")
    holder = names.get(class_name or "Solution")
    by_name: Callable[..., Any] | None = names[function] if callable(names.get(function)) else None
    if not class_name and by_name is not None:
        return by_name
    if holder is not None and hasattr(holder, function):
        found: Callable[..., Any] = getattr(holder(), function)
        return found
    if by_name is not None:
        return by_name
    raise NameError("the program has no " + entry)


def give_usual_names(code: CodeType, names: dict[str, Any]) -> None:
    """Imports what the program uses of the usual modules without having imported it; what it does not name is not loaded."""
    import importlib

    used: set[str] = set()
    waiting = [code]
    while waiting:
        one = waiting.pop()
        used.update(one.co_names)
        waiting.extend(constant for constant in one.co_consts if hasattr(constant, "co_names"))
    for name in USUAL_MODULES:
        if name in used:
            names[name] = importlib.import_module(name)
    own = names["__builtins__"] if isinstance(names["__builtins__"], dict) else vars(names["__builtins__"])
    missing = used - set(names) - set(own)
    for name in USUAL_NAMES_OF:
        if not missing:
            break
        module = importlib.import_module(name)
        for found in [one for one in missing if one in getattr(module, "__all__", dir(module))]:
            names[found] = getattr(module, found)
            missing.discard(found)


PROGRAMS["call"] = run_call
