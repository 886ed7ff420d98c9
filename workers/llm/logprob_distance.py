"""How far recorded logprobs are from recomputed ones, and how far they may be.

A distance is `recorded - recomputed`, nats, of one sampled token. It is infinite where the recomputed distribution leaves the token no
probability: under top-p a token at the edge of the set can fall out by rounding.

Faults of different kinds show in different numbers: other weights or another distribution in the mean of |d|, an offset by one token at
the first or the last token of a turn, a wrong temperature in the signed mean (the quantity that biases a ratio most), single wrong tokens
in the 99.9th percentile and the maximum.

Legend for array shapes: D compared tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
SIGNIFICANT = 3.0
"""A signed mean counts when it is this many standard errors from 0: that of a few tokens is chance."""


def _nothing() -> F64:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Distances of the compared tokens of some trajectories."""

    all_D: F64
    first_D: F64
    """Of the first token of each turn."""
    last_D: F64
    """Of the last token of each turn."""

    @classmethod
    def none(cls) -> Distances:
        """Of no token."""
        return cls(all_D=_nothing(), first_D=_nothing(), last_D=_nothing())

    def __add__(self, other: Distances) -> Distances:
        joined = {f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(Distances)}
        return Distances(**joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Some distances in a few numbers; those of no token are 0."""

    tokens: int
    mean_abs: float
    """Of the finite ones."""
    signed_mean: float
    """Of the finite ones."""
    standard_error: float
    """Of the signed mean."""
    p999_abs: float
    """99.9th percentile of |d|: of fewer than a thousand tokens the largest."""
    max_abs: float
    impossible: int
    """Tokens that the recomputed distribution leaves no probability."""


def summary_of(distances_D: F64) -> Summary:
    """The numbers of some distances."""
    n = len(distances_D)
    finite = distances_D[np.isfinite(distances_D)]
    if not n:
        return Summary(tokens=0, mean_abs=0.0, signed_mean=0.0, standard_error=0.0, p999_abs=0.0, max_abs=0.0, impossible=0)
    sizes = np.abs(distances_D)
    some = len(finite) > 0
    return Summary(
        tokens=n,
        mean_abs=float(np.abs(finite).mean()) if some else math.inf,
        signed_mean=float(finite.mean()) if some else math.inf,
        standard_error=float(finite.std()) / math.sqrt(len(finite)) if some else 0.0,
        p999_abs=float(np.quantile(sizes, 0.999, method="higher")),
        max_abs=float(sizes.max()),
        impossible=n - len(finite),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far apart two computations of one distribution may be, nats."""

    mean_abs: float
    p999_abs: float
    signed_mean: float
    max_abs: float = math.inf


TOLERANCES = {
    "bf16": Tolerance(mean_abs=0.02, p999_abs=0.2, signed_mean=0.003),
    "fp32": Tolerance(mean_abs=1e-4, p999_abs=1e-3, signed_mean=1e-4, max_abs=1e-3),
}
"""By the precision that the engine computes in. In bf16 a token computed in another batch shape differs by some hundredths of a nat."""


def beyond(distances: Distances, tolerance: Tolerance) -> list[str]:
    """Which bounds are passed, in words; empty when none is. First and last tokens of turns are judged by themselves, too."""
    found = []
    for name, distances_D in (("all", distances.all_D), ("first", distances.first_D), ("last", distances.last_D)):
        of = summary_of(distances_D)
        where = "" if name == "all" else f" of the {name} tokens of turns"
        for what, value, bound in (
            ("mean |d|", of.mean_abs, tolerance.mean_abs),
            ("p99.9 of |d|", of.p999_abs, tolerance.p999_abs),
            ("max |d|", of.max_abs, tolerance.max_abs),
        ):
            if value > bound:
                found.append(f"{what}{where}: expected at most {bound:g} nats, found {value:.3g} over {of.tokens} tokens")
        significant = abs(of.signed_mean) > SIGNIFICANT * of.standard_error
        if name == "all" and abs(of.signed_mean) > tolerance.signed_mean and significant:
            found.append(
                f"signed mean: expected within ±{tolerance.signed_mean:g} nats, found {of.signed_mean:+.3g} over {of.tokens} tokens"
            )
    return found
