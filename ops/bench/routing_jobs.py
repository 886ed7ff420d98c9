"""Multi-turn jobs for routing, drawn from lognormal lengths: a group's members share their prompt, all share what the system says first."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ops.bench.routing_engine import BLOCK_TOKENS, Span

MEMBERS = 8
SYSTEM_TOKENS = 512
PROMPT_TOKENS, PROMPT_SIGMA = 1200.0, 0.5
SAMPLED_TOKENS, SAMPLED_SIGMA = 140.0, 0.9
"""Of one turn."""
TOOL_TOKENS, TOOL_SIGMA = 250.0, 0.9
TOOL_S, TOOL_S_SIGMA = 1.0, 1.0
TURNS, TURNS_SIGMA, MOST_TURNS = 6.0, 0.6, 40


@dataclass(frozen=True, slots=True)
class Turn:
    """One call and the tool after it."""

    prompt: tuple[Span, ...]
    sampled: int
    tool_s: float


@dataclass(frozen=True, slots=True)
class RoutedJob:
    """One job: its group and its turns."""

    number: int
    group: str
    turns: tuple[Turn, ...]

    @property
    def name(self) -> str:
        return f"bench.{self.group}.{self.number % MEMBERS}"


def draw_jobs(count: int, seed: int) -> list[RoutedJob]:
    """The same for every policy."""
    chance = random.Random(seed)
    jobs = []
    for number in range(count):
        if number % MEMBERS == 0:
            prompt = _blocks(_lognormal(chance, PROMPT_TOKENS, PROMPT_SIGMA))
        group = f"g{number // MEMBERS}"
        jobs.append(RoutedJob(number, group, tuple(_turns(chance, number, group, prompt))))
    return jobs


def _turns(chance: random.Random, number: int, group: str, prompt: int) -> Iterator[Turn]:
    system = _blocks(SYSTEM_TOKENS)
    own = 0
    for _ in range(max(1, min(MOST_TURNS, round(_lognormal(chance, TURNS, TURNS_SIGMA))))):
        sampled = max(1, round(_lognormal(chance, SAMPLED_TOKENS, SAMPLED_SIGMA)))
        yield Turn((("system", 0, system), (group, 0, prompt), (number, 0, own)), sampled, _lognormal(chance, TOOL_S, TOOL_S_SIGMA))
        own += _blocks(sampled + _lognormal(chance, TOOL_TOKENS, TOOL_SIGMA))


def _blocks(tokens: float) -> int:
    return max(1, round(tokens / BLOCK_TOKENS))


def _lognormal(chance: random.Random, mean: float, sigma: float) -> float:
    return chance.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
