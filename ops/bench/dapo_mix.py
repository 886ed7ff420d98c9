"""The rollouts of `bench dapo` and of the simulated fleet: who is informative, who is slow, how long each takes; what of them is trained.

40 % of prompts are all right, 25 % all wrong, the others mixed; only mixed groups are informative. The length of a rollout is lognormal(0,
0.8) in units, times ten for a slow prompt.

Stratified. Plain sampling gives 4 % in tokens an accepted group and 8 % in the longest 5 % from one run of 50 steps to the next, more than
the bounds that are judged with it. So each block of prompts has the exact shares of kinds, and lengths are dealt: the groups of a kind that
begin one after the other share strata of the distribution, one a member. What is sampled has the true distribution nearly exactly, in any
run of a hundred groups; if what is trained on differs from it, somebody has selected. The dealing asks for nothing but the order in which
groups begin, which is before anybody knows how long they take.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

MEMBERS = 8
SIGMA = 0.8
TRUE_MEAN = math.exp(SIGMA**2 / 2)
LONGEST_5 = math.exp(SIGMA * NormalDist().inv_cdf(0.95))
"""Length that one in twenty exceeds."""
SLOW_FACTOR = 10.0
BLOCK = 40
"""Prompts in a block. Batches of 24 prompts fall more evenly than by chance: a step of them costs 1.40 of the oracle instead of 1.46, which
is in favour of those who work in batches."""
KINDS = {"right": 16, "wrong": 10, "mixed": 14}
"""Prompts of each kind in a block; of each, half are slow in a mix that has slow ones."""
INFORMATIVE = KINDS["mixed"] / BLOCK
ORACLE = MEMBERS * TRUE_MEAN / INFORMATIVE
"""Tokens of each accepted group when nothing is wasted but the groups that have to be filtered, in units."""
GROUPS_A_DEAL = 10
"""Groups that share the strata of one deal."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a prompt is."""

    name: str
    """`right`, `wrong` or `mixed`."""
    is_slow: bool

    @property
    def is_informative(self) -> bool:
        return self.name == "mixed"

    @property
    def factor(self) -> float:
        """Of the length of its rollouts."""
        return SLOW_FACTOR if self.is_slow else 1.0

    def reward(self, member: int) -> float:
        """Half of the members of a mixed prompt are right."""
        return {"right": 1.0, "wrong": 0.0, "mixed": float(member % 2)}[self.name]


@dataclass(frozen=True, slots=True)
class Mix:
    """A sequence of prompts, the same in every process.

    Args:
        half_slow: whether half of the prompts of each kind are slow.
    """

    seed: int
    half_slow: bool = False

    @property
    def mean_factor(self) -> float:
        """Of a rollout, over all prompts."""
        return (1 + SLOW_FACTOR) / 2 if self.half_slow else 1.0

    @property
    def oracle(self) -> float:
        """Tokens of each accepted group when nothing is wasted but the filtered ones."""
        return ORACLE * self.mean_factor

    def kind(self, prompt: int) -> Kind:
        """Of a prompt, by its number."""
        return _kinds(self.seed, prompt // BLOCK, self.half_slow)[prompt % BLOCK]


class Dealer:
    """Deals lengths to the groups of one run as they begin."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._begun: Counter[Kind] = Counter()
        self._dealt: dict[str, tuple[float, ...]] = {}

    def base_lengths(self, group: str, prompt: int) -> tuple[float, ...]:
        """Of the members of a group in units, without the factor of slow prompts; dealt when it is asked for first."""
        if group not in self._dealt:
            kind = self._mix.kind(prompt)
            deal, place = divmod(self._begun[kind], GROUPS_A_DEAL)
            self._begun[kind] += 1
            self._dealt[group] = _deal(self._mix.seed, kind, deal)[place * MEMBERS : (place + 1) * MEMBERS]
        return self._dealt[group]

    def length(self, group: str, prompt: int, member: int) -> float:
        """Of one rollout in units: how long it takes, and how many tokens it samples."""
        return self.base_lengths(group, prompt)[member] * self._mix.kind(prompt).factor


@dataclass
class TrainedOn:
    """What a stretch of steps was trained on, and what was sampled for it."""

    units: float = 0.0
    """Sampled in that time, whatever became of it."""
    lengths: list[float] = field(default_factory=list)
    """Of trained members in units, without the slow factor."""
    slow: list[bool] = field(default_factory=list)
    """Of accepted groups."""

    @property
    def mean_length(self) -> float:
        """Of trained members."""
        return sum(self.lengths) / len(self.lengths)

    @property
    def longest(self) -> float:
        """Share of trained members that are as long as the longest 5 % of all."""
        return sum(length > LONGEST_5 for length in self.lengths) / len(self.lengths)

    @property
    def slow_share(self) -> float:
        """Of accepted groups."""
        return sum(self.slow) / len(self.slow)

    @property
    def tokens_a_group(self) -> float:
        """Sampled for each accepted group, in units."""
        return self.units / len(self.slow)

    def add(self, kind: Kind, base_lengths: Iterable[float]) -> None:
        """A group that is trained on."""
        self.slow.append(kind.is_slow)
        self.lengths += base_lengths


@lru_cache(maxsize=512)
def _kinds(seed: int, block: int, half_slow: bool) -> tuple[Kind, ...]:
    found = [Kind(name, half_slow and number % 2 == 0) for name, count in KINDS.items() for number in range(count)]
    random.Random(f"kinds {seed} {block}").shuffle(found)
    return tuple(found)


@lru_cache(maxsize=512)
def _deal(seed: int, kind: Kind, deal: int) -> tuple[float, ...]:
    source = random.Random(f"lengths {seed} {kind.name} {kind.is_slow} {deal}")
    strata = list(range(GROUPS_A_DEAL * MEMBERS))
    source.shuffle(strata)
    normal = NormalDist(0.0, SIGMA)
    # never 0, where the quantile is infinite
    return tuple(math.exp(normal.inv_cdf((stratum + max(1e-9, source.random())) / len(strata))) for stratum in strata)
