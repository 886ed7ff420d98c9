"""Turns what pydantic found wrong with a request into one sentence a person can act on: the field, what was expected, what came.

pydantic says one part of a rule at a time ("should be a valid integer", then "should be at least 1"); here the whole rule is said at once,
read from the model: "expected an integer from 1 to 64, got '8' (str)".
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from enum import Enum

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pipeline.errors import InvalidRequest
from pipeline.near_names import hint

MOST_SHOWN = 5
"""Problems named in one message; more would hide the first."""
MOST_CHARACTERS = 60
"""Of a value that came."""

KINDS: Mapping[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def invalid_request(error: ValidationError, model: type[BaseModel]) -> InvalidRequest:
    """One error for all that is wrong with a request; `field` is the first offending one."""
    problems = [(_field(problem, model), _sentence(problem, model)) for problem in error.errors(include_url=False)]
    first_field, first = problems[0]
    others = [f"{field}: {sentence}" if field else sentence for field, sentence in problems[1:MOST_SHOWN]]
    if len(problems) > MOST_SHOWN:
        others.append(f"and {len(problems) - MOST_SHOWN} more")
    return InvalidRequest("; ".join([first, *others]), field=first_field)


def _field(problem: ErrorDetails, model: type[BaseModel]) -> str:
    if not problem["loc"] and problem["type"] != "value_error":
        return model.__name__
    return ".".join(str(part) for part in problem["loc"] if part != "[key]")


def _sentence(problem: ErrorDetails, model: type[BaseModel]) -> str:
    kind, loc = problem["type"], problem["loc"]
    owner, info = _place(model, loc)
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    if kind == "extra_forbidden":
        return f"unknown field; {hint(str(loc[-1]), owner.model_fields if owner else ())}"
    expected = _rule(info) if info is not None else problem["msg"].removeprefix("Input should be ")
    if kind == "missing":
        return f"expected {expected}, but it is missing"
    return f"expected {expected}, got {shown(problem['input'])}"


def _place(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The model that owns the last part of a path, and the field it names, as far as there is one."""
    owner: type[BaseModel] | None = model
    info: FieldInfo | None = None
    for i, part in enumerate(loc):
        if owner is None:
            return None, None
        info = owner.model_fields.get(str(part))
        if i < len(loc) - 1:
            inner = info.annotation if info else None
            owner = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return owner, info if owner is not None and loc else None


def _rule(info: FieldInfo) -> str:
    """All that a field asks for, as a phrase after "expected"."""
    return _kind(info.annotation) + _bounds(info.metadata)


def _kind(annotation: object) -> str:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else _kind(arg) for arg in typing.get_args(annotation))
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _kind(typing.get_args(annotation)[0])
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return "one of " + ", ".join(repr(member.value) for member in annotation)
        if issubclass(annotation, BaseModel):
            return f"a {annotation.__name__} or a map with its fields"
        if annotation in KINDS:
            return KINDS[annotation]
    if origin in (list, tuple):
        return "a list"
    return "a map with text as names"


def _bounds(metadata: list[object]) -> str:
    low = high = ""
    shape = ""
    for rule in metadata:
        if isinstance(rule, annotated_types.Ge):
            low = _number(rule.ge)
        elif isinstance(rule, annotated_types.Gt):
            low = f"above {_number(rule.gt)}"
        elif isinstance(rule, annotated_types.Le):
            high = _number(rule.le)
        elif isinstance(rule, annotated_types.MinLen):
            shape += f" of at least {rule.min_length} characters"
        elif isinstance(rule, annotated_types.MaxLen):
            shape += f" of at most {rule.max_length} characters"
        else:
            pattern = getattr(rule, "pattern", None)
            shape += f" that matches {pattern}" if pattern else ""
    if low.startswith("above "):
        return f" {low} and at most {high}" if high else f" {low}"
    if low and high:
        return f" from {low} to {high}{shape}"
    return (f" of at least {low}" if low else "") + (f" of at most {high}" if high else "") + shape


def _number(value: object) -> str:
    return f"{value:,.15g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def shown(value: object) -> str:
    """A value as an error shows it: short, with its type, whatever it is."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # too deep, 5,000 digits, or an object whose own repr raises whatever it likes
        text = f"a value that cannot be shown: {type(error).__name__}"
    short = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
    return f"{short} ({type(value).__name__})"
