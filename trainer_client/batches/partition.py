"""Shares rollouts out to ranks and packs their rows into microbatches. Pure functions of sizes: every rank computes all of it.

Invariants:
  1. Each rollout that has a row to train is on exactly one rank, with all of its segments.
  2. All ranks have the same number of microbatches, since each must call the same collectives equally often; some may be empty.
  3. A microbatch has at most `pack` tokens (`rows` rows); a row that is longer than `pack` is one of its own, never cut.
  4. The plan depends on sizes and arguments alone: not on the rank that computes it, nor on the order of a hash.

Bound: rollouts go longest first to the rank with the fewest tokens. The rank that ends as the fullest had at most the mean of what was
given out when its last one came, so it has at most `mean + longest * (world - 1) / world` tokens: below 1.3 of the mean (the fair share)
while no rollout is longer than 0.3 of it. In any case it has less than 4/3 of what the fullest rank of the best partition has (Graham
1969, SIAM J. Appl. Math. 17, theorem 2), which is at least the mean and at least the longest rollout.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import InvalidRequest
from pipeline.requests import bounded_int

MAX_WORLD = 1_000_000
MAX_BOUND = 2**40


@dataclass(frozen=True, slots=True, order=True)
class RowPlace:
    """A row of a plan."""

    rollout: int
    """Place in the manifest's `entries`."""
    segment: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank gets."""

    rollouts: tuple[int, ...]
    """Places in the manifest's `entries`, in order."""
    microbatches: tuple[tuple[RowPlace, ...], ...]
    """As many as every rank has; longest rows first, empty ones last."""

    @property
    def tokens(self) -> int:
        """Of all its rows."""
        return sum(row.tokens for rows in self.microbatches for row in rows)


def plan(row_tokens: Sequence[Sequence[int]], world: int, *, pack: int | None = None, rows: int | None = None) -> tuple[Share, ...]:
    """The shares of all ranks.

    Args:
        row_tokens: of each rollout, tokens of each of its segments; 0 = that segment gives no row.
        world: number of ranks.
        pack: most tokens of a microbatch, for rows end to end.
        rows: most rows of one, for rows in a rectangle: those of like length come together.

    Raises:
        InvalidRequest: not exactly one of `pack` and `rows`, or a number that is not above 0.
    """
    check_world(world)
    name, bound = _bound(pack, rows)
    shares = share_out([sum(tokens) for tokens in row_tokens], world)
    packed = []
    for places in shares:
        own = [RowPlace(place, at, tokens) for place in places for at, tokens in enumerate(row_tokens[place]) if tokens]
        own.sort(key=lambda row: (-row.tokens, row.rollout, row.segment))
        packed.append(_first_fit(own, bound) if name == "pack" else [own[at : at + bound] for at in range(0, len(own), bound)])
    most = max(map(len, packed))
    return tuple(
        Share(tuple(places), tuple(tuple(batch) for batch in batches) + ((),) * (most - len(batches)))
        for places, batches in zip(shares, packed, strict=True)
    )


def share_out(tokens: Sequence[int], world: int) -> list[list[int]]:
    """Whole rollouts to ranks: longest first, each to the rank with the fewest tokens; of equal ones the first.

    Args:
        tokens: of each rollout; one of 0 goes to nobody.

    Returns:
        Of each rank the indices that it gets, in order.
    """
    shares: list[list[int]] = [[] for _ in range(world)]
    loads = [(0, rank) for rank in range(world)]
    for place in sorted((place for place, count in enumerate(tokens) if count), key=lambda place: (-tokens[place], place)):
        load, rank = loads[0]
        shares[rank].append(place)
        heapq.heapreplace(loads, (load + tokens[place], rank))
    return [sorted(share) for share in shares]


def check_world(world: int) -> None:
    """Refuses a number of ranks that is none."""
    bounded_int(world, "world", low=1, high=MAX_WORLD)


def check_shard(shard: tuple[int, int]) -> tuple[int, int]:
    """Rank and number of ranks.

    Raises:
        InvalidRequest
    """
    given: object = shard
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidRequest(f"expected (rank, number of ranks), such as (0, 1), got {shard!r}", field="shard")
    rank, world = shard
    check_world(world)
    bounded_int(rank, "rank", low=0, high=world - 1)
    return rank, world


def _bound(pack: int | None, rows: int | None) -> tuple[str, int]:
    if (pack is None) == (rows is None):
        raise InvalidRequest(
            "expected one of pack=<tokens a microbatch>, for rows end to end, and rows=<rows a microbatch>, for padded ones"
        )
    name, bound = ("pack", pack) if pack is not None else ("rows", rows or 0)
    bounded_int(bound, name, low=1, high=MAX_BOUND)
    return name, bound


def _first_fit(rows: Sequence[RowPlace], pack: int) -> list[list[RowPlace]]:
    """Each row into the first microbatch that has room for it.

    Args:
        rows: longest first.
    """
    batches: list[list[RowPlace]] = []
    room = np.zeros(len(rows), np.int64)
    for row in rows:
        fits = room[: len(batches)] >= row.tokens
        at = int(fits.argmax()) if fits.any() else len(batches)
        if at == len(batches):
            batches.append([])
            room[at] = pack
        batches[at].append(row)
        room[at] -= row.tokens
    return batches


__all__ = ["RowPlace", "Share", "check_shard", "check_world", "plan", "share_out"]
