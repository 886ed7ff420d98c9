"""The order in which the rows of a data set become prompts.

A prompt's id is `e<epoch>-<row>`: it names the row, not its place in the order, and is the same in every process that feeds the same data
with the same seed. After a restart the prompts that were handed out and not settled come first, in their old order, then the feed goes on.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import InvalidRequest
from pipeline.requests import bounded_int
from trainer_client.progress import FeedProgress

Rows = Iterable[object]
PROMPT = re.compile(r"e(\d+)-(\d+)\Z")


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """A prompt in its turn."""

    id: str
    load: Callable[[], object]
    """Brings its row."""
    epoch: int
    position: int
    """Where the feed stands when it was pushed; -1 = it was pushed before, the feed stands where it did."""


def prompt_id(epoch: int, row: int) -> str:
    return f"e{epoch}-{row}"


def is_indexed(rows: Rows) -> bool:
    """Whether rows can be taken in any order."""
    return isinstance(rows, Sequence) or (hasattr(rows, "__len__") and hasattr(rows, "__getitem__"))


def check_dataset(rows: Rows, epochs: int, shuffle_seed: int | None) -> int | None:
    """The length of a data set, None when it has none.

    Raises:
        InvalidRequest: it cannot be fed like that.
    """
    if shuffle_seed is not None:
        bounded_int(shuffle_seed, "shuffle_seed", low=-(2**63), high=2**63 - 1)
    if isinstance(rows, str | bytes | dict):
        raise InvalidRequest(f"expected rows (a list, a data set, an iterable of maps), got one {type(rows).__name__}", field="dataset")
    if is_indexed(rows):
        n = len(rows)  # type: ignore[arg-type]  # is_indexed looked
        if n == 0:
            raise InvalidRequest("expected at least one row, got none", field="dataset")
        return n
    if not hasattr(rows, "__iter__"):
        raise InvalidRequest(f"expected rows (a list, a data set, an iterable of maps), got {type(rows).__name__}", field="dataset")
    if shuffle_seed is not None:
        raise InvalidRequest("expected a data set with a length and an index; this one can only be read in order", field="shuffle_seed")
    if epochs > 1 and iter(rows) is rows:
        raise InvalidRequest(f"expected 1 for an iterator, which can be read once, got {epochs}: pass a list", field="epochs")
    return None


def epoch_order(rows: int, epoch: int, shuffle_seed: int | None) -> list[int]:
    """Order of the rows in one epoch.

    Sorting by drawn numbers, since `Random.random` is promised to be the same in every version of Python and `Random.shuffle` is not.
    """
    order = list(range(rows))
    if shuffle_seed is not None:
        source = random.Random(f"{shuffle_seed}:{epoch}")
        draws = [source.random() for _ in order]
        order.sort(key=draws.__getitem__)
    return order


def settled(progress: FeedProgress) -> Callable[[str], bool]:
    """Tells of a prompt whether it was done with where the feed stands: it has come to it and does not wait for it, or settled it ahead."""
    order = range(progress.position) if progress.rows is None else epoch_order(progress.rows, progress.epoch, progress.shuffle_seed)
    passed = frozenset(order[: progress.position])

    def is_settled(prompt: str) -> bool:
        match = PROMPT.match(prompt)
        if match is None or prompt in progress.outstanding:
            return False
        epoch, row = int(match[1]), int(match[2])
        return prompt in progress.settled_ahead or epoch < progress.epoch or (epoch == progress.epoch and row in passed)

    return is_settled


def plan(rows: Rows, progress: FeedProgress) -> Iterator[PlannedPrompt]:
    """All that is still to be pushed: what is outstanding, then the rest. Takes a copy of where the feed stands when it begins."""
    outstanding = list(progress.outstanding)
    if is_indexed(rows):
        yield from _plan_indexed(rows, progress.epochs, progress.shuffle_seed, progress.epoch, progress.position, outstanding)  # type: ignore[arg-type]
    else:
        yield from _plan_in_order(rows, progress.epochs, progress.epoch, progress.position, frozenset(outstanding))


def _plan_indexed(
    rows: Sequence[object], epochs: int, shuffle_seed: int | None, epoch: int, position: int, outstanding: Sequence[str]
) -> Iterator[PlannedPrompt]:
    n = len(rows)
    for known in outstanding:
        yield PlannedPrompt(known, _loader(rows, _row_of(known, n)), epoch, -1)
    for at in range(epoch, epochs):
        order = epoch_order(n, at, shuffle_seed)
        for place in range(position if at == epoch else 0, n):
            yield PlannedPrompt(prompt_id(at, order[place]), _loader(rows, order[place]), at, place + 1)


def _plan_in_order(rows: Rows, epochs: int, epoch: int, position: int, outstanding: frozenset[str]) -> Iterator[PlannedPrompt]:
    first = min((int(match[1]) for match in map(PROMPT.match, outstanding) if match), default=epoch)
    for at in range(first, epochs):
        for place, row in enumerate(rows):
            name = prompt_id(at, place)
            if (at, place) >= (epoch, position):
                yield PlannedPrompt(name, _given(row), at, place + 1)
            elif name in outstanding:
                yield PlannedPrompt(name, _given(row), epoch, -1)


def _row_of(prompt: str, rows: int) -> int:
    match = PROMPT.match(prompt)
    if match is None or int(match[2]) >= rows:
        raise InvalidRequest(f"prompt {prompt!r} of the resumed state is no row of this data set of {rows} rows", field="dataset")
    return int(match[2])


def _loader(rows: Sequence[object], index: int) -> Callable[[], object]:
    return lambda: rows[index]


def _given(row: object) -> Callable[[], object]:
    return lambda: row
