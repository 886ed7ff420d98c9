"""`bench graders` measures verdicts that are right, seen on its pairs that need no process."""

from __future__ import annotations

import pytest

from ops.bench.graders_bench import ALGEBRA, graded, pairs_of
from workers.graders import MathGrader


async def test_its_pairs_are_the_same_each_time_and_their_verdicts_are_checked() -> None:
    pairs = pairs_of(300)
    plain = [pair for pair in pairs if not any(answer in pair[0] for answer, _, _ in ALGEBRA)]

    async with MathGrader(processes=1) as grader:
        took_s, each_s = await graded(grader, plain)
        with pytest.raises(ValueError, match="expected True, got"):
            await graded(grader, [(r"\boxed{3}", "4", True)])

        assert grader.pids == frozenset()
    assert pairs == pairs_of(300)
    assert len(each_s) == len(plain) == 270
    assert {same for _, _, same in plain} == {True, False}
    assert took_s > 0
