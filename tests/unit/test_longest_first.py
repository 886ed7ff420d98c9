"""Long tests begin first, in whichever process has them (`tests/longest_first.py`)."""

from __future__ import annotations

import random

import pytest

from tests.longest_first import Length, longest_first

USUAL_S = 60.0


def stretches(order: list[int], processes: int) -> list[list[int]]:
    """What pytest-xdist gives each process at first."""
    left = list(order)
    found = []
    for number in range(processes):
        size = len(left) // (processes - number)
        found.append(left[:size])
        del left[:size]
    return found


def some_tests(seed: int) -> list[Length]:
    chance = random.Random(seed)
    return [
        Length(module=f"m{chance.randrange(40)}", limit_s=chance.choice([60.0] * 30 + [120.0, 300.0])) for _ in range(chance.randrange(200))
    ]


@pytest.mark.parametrize("processes", [1, 3, 4])
def test_no_test_is_lost_or_run_twice(processes: int) -> None:
    for seed in range(50):
        tests = some_tests(seed)

        assert sorted(longest_first(tests, usual_s=USUAL_S, processes=processes)) == list(range(len(tests)))


def test_each_process_begins_with_long_tests_and_ends_with_short_ones() -> None:
    tests = [Length(module=f"m{number // 5}", limit_s=300.0 if number % 10 == 9 else 60.0) for number in range(120)]

    order = longest_first(tests, usual_s=USUAL_S, processes=4)

    for stretch in stretches(order, 4):
        assert [tests[place].limit_s for place in stretch] == [300.0] * 3 + [60.0] * 27


def test_long_tests_of_a_module_stay_together_and_others_keep_their_order() -> None:
    tests = [Length(module=module, limit_s=limit) for module, limit in zip("abcabcddd" * 4, [120.0, 60.0, 300.0] * 12, strict=True)]

    order = longest_first(tests, usual_s=USUAL_S, processes=2)

    first, second = ([place for place in stretch if tests[place].limit_s > USUAL_S] for stretch in stretches(order, 2))
    assert {tests[place].module for place in first} & {tests[place].module for place in second} == set()
    short = [place for place in order if tests[place].limit_s == USUAL_S]
    assert short == sorted(short)


def test_the_longest_module_is_met_first_and_the_load_is_even() -> None:
    tests = [Length(module=name, limit_s=limit) for name, limit in (("a", 120.0), ("b", 300.0), ("c", 180.0), ("d", 61.0), ("e", 60.0))]

    order = longest_first(tests, usual_s=USUAL_S, processes=2)

    assert [tests[place].module for place in order] == ["b", "d", "c", "a", "e"]
