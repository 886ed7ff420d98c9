"""What a judge asked of the program (`judge.py`), done in order in the program's own process; comes after `calls.py`.

A request is data:

    {"name": text}                                  what the program calls so
    {"call": [request, [arguments], {named}], "n": count}
    {"attr": [request, text]}
    {"set": [request, text, request], "n": count}   gives an object's attribute a value
    {"of": [operation, request, ...], "n": count}   `value`, `items`, `len`, `str`, `item`: of an object that is no plain value
    {"plain": value}  {"list": [...]}  {"tuple": [...]}  {"dict": [[name, value], ...]}

The count keeps calls apart that are written alike. An answer is a plain value, the kind and text of an exception, or that it is an object.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from typing import Any

    from workers.graders.code.inside.calls import entry_of, give_usual_names
    from workers.graders.code.inside.plain import NotPlain, from_plain, to_plain
    from workers.graders.code.inside.runner import PROGRAMS, prepared, write_all

MOST_ITEMS = 1_000_000
"""Taken of an iterator that may have no end."""
CANDIDATE = "candidate"


def run_batch(order: dict[str, str], program: bytes, given: bytes, files: dict[str, int]) -> None:
    """Answers every request, and ends there and then."""
    code, names = prepared(program, files, "solution")
    requests = json.loads(given.decode())
    dumps = json.dumps
    give_usual_names(code, names)
    exec(code, names)
    known: dict[str, Any] = {}
    answers: list[dict[str, Any]] = []
    for request in requests:
        try:
            value = done(request, names, order["entry"], known)
        except Exception as raised:  # noqa: BLE001  # whatever the program raises is its answer
            kind = next(each.__name__ for each in type(raised).__mro__ if each.__module__ == "builtins")  # its own the tests do not have
            answers.append({"raised": [kind[:80], str(raised)[:500]]})
            continue
        try:
            answers.append({"value": to_plain(value)})
        except NotPlain as refused:
            answers.append({"object": str(refused)})
    write_all(files["result"], dumps(answers).encode())
    sys.stdout.flush()
    os._exit(0)


def done(request: Any, names: dict[str, Any], entry: str, known: dict[str, Any]) -> Any:
    """The value of a request; one that was done before is the same object. Attributes are looked up each time: they change."""
    if "attr" in request:
        return getattr(done(request["attr"][0], names, entry, known), request["attr"][1])
    key = json.dumps(request, sort_keys=True)
    if key not in known:
        known[key] = _done(request, names, entry, known)
    return known[key]


def _done(request: Any, names: dict[str, Any], entry: str, known: dict[str, Any]) -> Any:
    def of(inner: Any) -> Any:
        return done(inner, names, entry, known)

    if "plain" in request:
        return from_plain(request["plain"])
    if "list" in request:
        return [of(one) for one in request["list"]]
    if "tuple" in request:
        return tuple(of(one) for one in request["tuple"])
    if "dict" in request:
        return {of(name): of(one) for name, one in request["dict"]}
    if "name" in request:
        name = request["name"]
        if name == CANDIDATE and name not in names:
            return entry_of(names, entry)
        if name in names:
            return names[name]
        raise NameError(f"name {name!r} is not defined")
    if "of" in request:
        return _operation(request["of"][0], [of(one) for one in request["of"][1:]])
    if "set" in request:
        holder, attribute, value = request["set"]
        setattr(of(holder), attribute, of(value))
        return None
    function, arguments, named = request["call"]
    return of(function)(*[of(one) for one in arguments], **{name: of(one) for name, one in named.items()})


def _operation(operation: str, values: list[Any]) -> Any:
    if operation == "items":
        taken = []
        for one in values[0]:
            taken.append(one)
            if len(taken) > MOST_ITEMS:
                raise OverflowError("an iterator without an end")
        return taken
    if operation == "value":
        return values[0]
    if operation == "len":
        return len(values[0])
    if operation == "str":
        return str(values[0])
    return values[0][values[1]]


PROGRAMS["batch"] = run_batch
