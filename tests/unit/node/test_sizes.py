"""How slots become processes, and which of them stay when a size changes (docs/adr/0027-node.md, "Sizes")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.node.asking import read_sizes
from ops.node.sizes import Size, default_size, plan_change
from pipeline.errors import InvalidRequest
from pipeline.messages import Stage
from workers.settings import MOST_DEFAULT_SLOTS


@pytest.mark.parametrize(("text", "size"), [("96", Size(96)), ("3x32", Size(32, 3)), (" 8 ", Size(8)), ("0", Size(0)), ("0x4", Size(4, 0))])
def test_a_size_is_slots_or_processes_and_slots(text: str, size: Size) -> None:
    assert Size.parse(text) == size
    assert Size.parse(str(size)) == size


@pytest.mark.parametrize("text", ["", "x", "3x", "-1", "3x0", "1.5", "999x2", "2x99999", "99999", "3 x 4", "٣"])
def test_what_is_no_size_is_told_with_what_is(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"expected|at most"):
        Size.parse(text)


def test_by_default_slots_go_by_cores_and_processes_by_what_one_event_loop_serves() -> None:
    assert default_size(Stage.RUN, 64).slots == 16 * 64

    change = plan_change(Stage.RUN, default_size(Stage.RUN, 64), {}, ())

    assert change.start == {0: 256, 1: 256, 2: 256, 3: 256}


def test_growing_ends_nothing() -> None:
    change = plan_change(Stage.RUN, Size(96), {0: 64}, {0})

    assert change.stop == ()
    assert change.start == {1: 32}


def test_shrinking_keeps_the_largest_that_fit_and_fills_up_beside_them() -> None:
    change = plan_change(Stage.RUN, Size(48), {0: 64, 1: 32}, {0, 1})

    assert change.stop == (0,)
    assert change.start == {2: 16}


def test_a_process_that_drains_keeps_its_index() -> None:
    change = plan_change(Stage.EVAL, Size(4, 2), {1: 4}, {0, 1})

    assert (change.stop, change.start) == ((), {2: 4})


def test_nothing_is_wanted() -> None:
    assert plan_change(Stage.INIT, Size(0), {0: 8, 1: 8}, {0, 1}).stop == (0, 1)
    assert plan_change(Stage.INIT, Size(0), {0: 8, 1: 8}, {0, 1}).start == {}


SIZES = st.one_of(st.builds(Size, st.integers(0, 3000)), st.builds(Size, st.integers(1, 300), st.integers(0, 12)))


@given(st.sampled_from(list(Stage)), SIZES, st.dictionaries(st.integers(0, 9), st.integers(1, 256), max_size=8), st.sets(st.integers(0, 9)))
def test_after_a_change_a_stage_has_its_size_and_no_index_twice(stage: Stage, size: Size, now: dict[int, int], draining: set[int]) -> None:
    taken = draining | now.keys()

    change = plan_change(stage, size, now, taken)

    kept = {index: slots for index, slots in now.items() if index not in change.stop}
    assert sum(kept.values()) + sum(change.start.values()) == size.total
    assert not change.start.keys() & taken
    assert set(change.stop) <= now.keys()
    if size.processes is None:
        assert all(1 <= slots <= MOST_DEFAULT_SLOTS[stage] for slots in change.start.values())
    else:
        assert [*kept.values(), *change.start.values()] == [size.slots] * size.processes


@given(st.sampled_from(list(Stage)), SIZES, st.dictionaries(st.integers(0, 9), st.integers(1, 256), max_size=8))
def test_the_same_size_asked_again_changes_nothing(stage: Stage, size: Size, now: dict[int, int]) -> None:
    first = plan_change(stage, size, now, now)
    then = {index: slots for index, slots in now.items() if index not in first.stop} | dict(first.start)

    again = plan_change(stage, size, then, then)

    assert (again.stop, again.start) == ((), {})


def test_sizes_of_a_command_line() -> None:
    assert read_sizes(["run=96", "EVAL=2x4"]) == {Stage.RUN: Size(96), Stage.EVAL: Size(4, 2)}
    for words in (["run"], ["gpu=3"], ["run=1", "run=2"], ["run="]):
        with pytest.raises(InvalidRequest):
            read_sizes(words)
