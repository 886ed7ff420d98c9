"""Columns of exported data, once for both formats: a name, a type and a sentence each. No pyarrow here: it is asked for where it is used.

A type is written as the reference shows it: `text`, `whole`, `number`, `yes/no`, `time`, `u8`, `u32`, `f32`, `json`; `list of T`; `map of
T` (from text); `record` and `list of record`, which have columns of their own. In JSON lines `json` is an object, `time` a text in UTC, and
a number that is none (NaN) is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    type: str
    says: str
    inner: tuple[Column, ...] = ()
    """Of `record` and `list of record`."""

    def flat(self, prefix: str = "") -> Iterator[Column]:
        """Itself and the columns in it, with dots in their names."""
        yield Column(prefix + self.name, self.type, self.says)
        for column in self.inner:
            yield from column.flat(f"{prefix}{self.name}.")


def flat(columns: Sequence[Column]) -> list[Column]:
    """All columns, those in columns after them."""
    return [one for column in columns for one in column.flat()]


__all__ = ["Column", "flat"]
