"""The order in which rows become prompts, in a new run and in one that goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequest
from trainer_client.dataset import check_dataset, epoch_order, plan
from trainer_client.progress import FeedProgress

ROWS = [f"row {i}" for i in range(10)]


class InOrder:
    """A data set without index or length that can be read again."""

    def __init__(self, rows: int = 10) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[str]:
        return (f"row {i}" for i in range(self._rows))


def fed(rows: Iterable[object], progress: FeedProgress) -> list[tuple[str, object]]:
    return [(prompt.id, prompt.load()) for prompt in plan(rows, progress)]


def test_without_a_seed_the_order_is_that_of_the_rows() -> None:
    assert fed(ROWS[:3], FeedProgress(2, None, 3)) == [(f"e{e}-{i}", ROWS[i]) for e in range(2) for i in range(3)]


def test_an_id_names_its_row_in_every_order() -> None:
    prompts = fed(ROWS, FeedProgress(3, 7, 10))

    assert len(prompts) == len(dict(prompts)) == 30
    assert all(row == ROWS[int(prompt.partition("-")[2])] for prompt, row in prompts)
    assert [prompt for prompt, _ in prompts[:10]] != [f"e0-{i}" for i in range(10)]


def test_the_order_of_a_seed_is_the_same_in_every_version() -> None:
    """Written down once: a checkpoint of today is resumed by a Python of tomorrow."""
    assert epoch_order(10, 0, 7) == [1, 8, 5, 7, 3, 9, 0, 6, 4, 2]
    assert epoch_order(10, 1, 7) == [8, 2, 4, 3, 7, 1, 6, 5, 9, 0]


@given(
    rows=st.integers(1, 12),
    epochs=st.integers(1, 3),
    seed=st.none() | st.integers(0, 5),
    taken=st.integers(0, 40),
    settled=st.sets(st.integers(0, 40)),
    is_indexed=st.booleans(),
)
def test_going_on_brings_what_is_outstanding_then_the_rest_each_once(
    rows: int, epochs: int, seed: int | None, taken: int, settled: set[int], is_indexed: bool
) -> None:
    data = [f"row {i}" for i in range(rows)] if is_indexed else InOrder(rows)
    length, seed = (rows, seed) if is_indexed else (None, None)
    whole = fed(data, FeedProgress(epochs, seed, length))
    progress = FeedProgress(epochs, seed, length)
    for at, prompt in enumerate(plan(data, progress)):
        if at == taken:
            break
        progress.outstanding[prompt.id] = None
        progress.epoch, progress.position = prompt.epoch, prompt.position
    for at in settled:
        if at < taken and at < len(whole):
            progress.outstanding.pop(whole[at][0], None)

    rest = fed(data, progress)

    assert rest == [prompt for at, prompt in enumerate(whole) if at >= taken or at not in settled]


@pytest.mark.parametrize(
    ("rows", "epochs", "seed", "sentence"),
    [
        ([], 1, None, "dataset: expected at least one row, got none"),
        ("text", 1, None, "dataset: expected rows .* got one str"),
        ({"a": 1}, 1, None, "dataset: expected rows .* got one dict"),
        (7, 1, None, "dataset: expected rows .* got int"),
        (InOrder(), 1, 7, "shuffle_seed: expected a data set with a length and an index"),
        (iter(ROWS), 2, None, "epochs: expected 1 for an iterator, which can be read once, got 2"),
    ],
)
def test_what_cannot_be_fed_like_that_is_refused(rows: object, epochs: int, seed: int | None, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        check_dataset(rows, epochs, seed)  # type: ignore[arg-type]  # wrong on purpose


def test_the_length_is_known_of_what_has_an_index() -> None:
    assert check_dataset(ROWS, 2, 7) == 10
    assert check_dataset(InOrder(), 2, None) is None
    assert check_dataset(iter(ROWS), 1, None) is None


def test_a_prompt_of_another_data_set_is_refused() -> None:
    progress = FeedProgress(1, None, 3, outstanding={"e0-7": None})

    with pytest.raises(InvalidRequest, match="prompt 'e0-7' of the resumed state is no row of this data set of 3 rows"):
        fed(ROWS[:3], progress)
