"""Shares and microbatches: whole rollouts, equal counts, bounds, and the same plan whoever makes it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequest
from trainer_client.batches.partition import check_shard, plan, share_out

ROWS = st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=40)


def total(row_tokens: list[list[int]]) -> int:
    return sum(map(sum, row_tokens))


@given(ROWS, st.integers(1, 9), st.integers(1, 400))
def test_each_rollout_is_on_one_rank_whole_and_no_microbatch_is_above_its_bound(row_tokens: list[list[int]], world: int, pack: int) -> None:
    shares = plan(row_tokens, world, pack=pack)

    assert len(shares) == world
    assert len({len(share.microbatches) for share in shares}) == 1
    with_rows = [place for place, tokens in enumerate(row_tokens) if any(tokens)]
    assert sorted(place for share in shares for place in share.rollouts) == with_rows
    for share in shares:
        rows = [row for batch in share.microbatches for row in batch]
        own = [(place, at, tokens) for place in share.rollouts for at, tokens in enumerate(row_tokens[place]) if tokens]
        assert sorted((row.rollout, row.segment, row.tokens) for row in rows) == own
        for batch in share.microbatches:
            assert sum(row.tokens for row in batch) <= pack or len(batch) == 1
    assert not any(all(not share.microbatches[at] for share in shares) for at in range(len(shares[0].microbatches)))


@given(ROWS, st.integers(1, 9), st.integers(1, 5))
def test_rectangles_hold_rows_of_like_length(row_tokens: list[list[int]], world: int, rows: int) -> None:
    shares = plan(row_tokens, world, rows=rows)

    for share in shares:
        filled = [batch for batch in share.microbatches if batch]
        assert all(len(batch) == rows for batch in filled[:-1])
        lengths = [row.tokens for batch in filled for row in batch]
        assert lengths == sorted(lengths, reverse=True)
        assert sum(lengths) == sum(sum(row_tokens[place]) for place in share.rollouts)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200), st.integers(1, 64))
def test_no_rank_has_more_than_the_bound_that_is_told(tokens: list[int], world: int) -> None:
    loads = [sum(tokens[place] for place in share) for share in share_out(tokens, world)]

    assert sum(loads) == sum(tokens)
    assert max(loads) <= sum(tokens) / world + max(tokens) * (world - 1) / world


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(1, 400))
def test_one_rank_needs_no_more_microbatches_than_are_half_full(tokens: list[int], pack: int) -> None:
    """First fit leaves no two that would fit into one."""
    batches = plan([[count] for count in tokens], 1, pack=pack)[0].microbatches
    filled = sorted(sum(row.tokens for row in batch) for batch in batches)

    assert all(one + other > pack for one, other in pairwise(filled))


@pytest.mark.parametrize("seed", range(8))
def test_64_ranks_with_heavy_tailed_lengths_have_less_than_1_3_of_their_fair_share(seed: int) -> None:
    """512 rollouts of a log-normal length (a hundredth of them is ten times the median), cut at what a model's context allows."""
    random = np.random.default_rng(seed)
    tokens = [int(count) for count in np.minimum(32_768, 2_000 * random.lognormal(0.0, 1.0, 512)) + 50]
    fair = sum(tokens) / 64

    loads = [sum(tokens[place] for place in share) for share in share_out(tokens, 64)]

    assert max(loads) < 1.3 * max(fair, max(tokens))
    if max(tokens) <= fair:
        assert max(loads) < 1.05 * fair


def test_the_plan_is_the_one_that_was_always_made() -> None:
    """Ranks compute it each for themselves, perhaps in two versions of this package: a change of it would part them."""
    row_tokens = [[5, 3], [9], [], [4, 0, 4], [8], [1]]

    first, second = plan(row_tokens, 2, pack=9)

    assert (first.rollouts, second.rollouts) == ((1, 4), (0, 3, 5))
    assert [[(row.rollout, row.segment) for row in batch] for batch in first.microbatches] == [[(1, 0)], [(4, 0)]]
    assert [[(row.rollout, row.segment) for row in batch] for batch in second.microbatches] == [
        [(0, 0), (3, 0)],
        [(3, 2), (0, 1), (5, 0)],
    ]


def test_equal_lengths_go_round_in_the_order_of_the_step() -> None:
    assert share_out([5] * 7, 3) == [[0, 3, 6], [1, 4], [2, 5]]


@pytest.mark.parametrize("options", [{}, {"pack": 8, "rows": 8}, {"pack": 0}, {"rows": 0}, {"pack": True}])
def test_a_microbatch_has_one_bound_above_0(options: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        plan([[1]], 1, **options)


@pytest.mark.parametrize("shard", [(0, 0), (1, 1), (-1, 4), (True, 4), (0, 2.0)])
def test_a_shard_is_a_rank_of_so_many(shard: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest):
        check_shard(shard)
