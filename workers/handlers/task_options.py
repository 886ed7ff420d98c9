"""The options of a task, which come in `options` of a request and are the same for all jobs of a step: declared once, checked, and read.

    TOOLS = Option(name="tools", takes=Truth(), default=True, about="whether the model has `python`")

    class MathHandler(AgentHandler):
        options = (TOOLS,)
        ...
            if TOOLS.of(spec): ...

Invariants
    - What a handler declares is all that it takes: another name, or a value of another kind, is refused with what was meant, by the
      commands that know the handler before they ask for anything, and else in INIT, where it ends the job (`BadOption`: no retry).
    - A handler that declares nothing (`options = None`) takes whatever comes: it checks what it reads.
    - `null` is an option that was not said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pipeline.errors import InvalidRequest
from pipeline.messages import JobSpec, Json
from pipeline.near_names import hint
from pipeline.request_errors import shown

T = TypeVar("T")
Value = TypeVar("Value", covariant=True)


class BadOption(InvalidRequest):
    """An option that the task does not have, or a value that it does not take."""


class Kind(Protocol[Value]):
    """What values an option takes."""

    @property
    def words(self) -> str:
        """After "expected": `true or false`."""

    def read(self, value: object) -> Value:
        """The value, as the handler wants it.

        Raises:
            ValueError: it is none of these; what is wrong is in `words`.
        """


@dataclass(frozen=True, kw_only=True)  # with slots `Option[float | None](...)` raises on Python 3.11
class Option(Generic[T]):
    """One of them."""

    name: str
    takes: Kind[T]
    default: T
    """What `of` gives when nobody says the option."""
    about: str
    """One sentence for people, in Markdown without links, as the page of tasks has it too."""
    without: str = ""
    """What the default means, where its value does not tell: `the row's`."""

    def of(self, spec: JobSpec) -> T:
        """What a job says, else the default.

        Raises:
            BadOption: a value of another kind.
        """
        return self.in_options(spec.template.options)

    def in_options(self, options: Json) -> T:
        """The same, of the options alone."""
        value = options.get(self.name)
        if value is None:
            return self.default
        try:
            return self.takes.read(value)
        except ValueError as refused:
            raise BadOption(f"expected {self.takes.words}, got {shown(value)}", field=f"options.{self.name}") from refused

    @property
    def default_words(self) -> str:
        """The default, for people, in Markdown."""
        if self.without:
            return self.without
        if isinstance(self.default, bool):
            return f"`{str(self.default).lower()}`"
        if isinstance(self.default, tuple):
            return ", ".join(f"`{each}`" for each in self.default)
        return f"`{self.default:g}`" if isinstance(self.default, float) else f"`{self.default}`"


def check_options(task: str, declared: Sequence[Option[Any]] | None, said: Json) -> None:
    """Refuses what a task does not take; says all that is wrong at once.

    Args:
        declared: None = the task declares nothing, and takes anything.

    Raises:
        BadOption
    """
    if declared is None:
        return
    known = {option.name: option for option in declared}
    faults: list[tuple[str, str]] = []
    for name in said:
        if name not in known:
            faults.append((f"options.{name}", f"the task {task} has no such option; {hint(name, known)}"))
            continue
        try:
            known[name].in_options(said)
        except BadOption as refused:
            faults.append((refused.field, str(refused).removeprefix(f"{refused.field}: ")))
    if faults:
        (field, first), *others = faults
        raise BadOption("; ".join([first, *(f"{where}: {what}" for where, what in others)]), field=field)


@dataclass(frozen=True, slots=True)
class Truth:
    """`true` or `false`."""

    words: str = "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number in a range; never infinite."""

    least: float = 0.0
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    @property
    def words(self) -> str:
        low = f"above {self.above:g}" if math.isfinite(self.above) else f"from {self.least:g}"
        high = f" to {self.most:,g}" if math.isfinite(self.most) else f", below {self.below:g}" if math.isfinite(self.below) else ""
        return f"a number {low}{high}"

    def read(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        if not (self.least <= value <= self.most and self.above < value < self.below):
            raise ValueError(value)
        return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number in a range."""

    least: int = 0
    most: int | None = None

    @property
    def words(self) -> str:
        return f"a whole number from {self.least:,}" + ("" if self.most is None else f" to {self.most:,}")

    def read(self, value: object) -> int:
        if isinstance(value, float) and value.is_integer():  # 1e6, as people write it
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < self.least or (self.most is not None and value > self.most):
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text."""

    words: str = "a text"
    least_chars: int = 0

    def read(self, value: object) -> str:
        if not isinstance(value, str) or len(value) < self.least_chars:
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        return " or ".join(repr(choice) for choice in self.choices)

    def read(self, value: object) -> str:
        if value not in self.choices:
            raise ValueError(value)
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Tools by name: `true` for the usual ones, `false` for none, or a list; given in the order in which the model is to see them."""

    usual: tuple[str, ...]
    more: tuple[str, ...] = ()
    """That are there when a list names them."""

    @property
    def words(self) -> str:
        return f"true, false, or a list out of {', '.join((*self.usual, *self.more))}"

    def read(self, value: object) -> tuple[str, ...]:
        if isinstance(value, bool):
            return self.usual if value else ()
        if (
            not isinstance(value, list | tuple)
            or not all(name in (*self.usual, *self.more) for name in value)
            or len(set(value)) != len(value)
        ):
            raise ValueError(value)
        return tuple(value)


@dataclass(frozen=True, slots=True)
class TextsByName:
    """A map with texts."""

    words: str = "texts by name"

    def read(self, value: object) -> Mapping[str, str]:
        if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in (*value, *value.values())):
            raise ValueError(value)
        return value
