"""The numbers of a validation, as plain functions: which members count, and estimates that say what they are of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.messages import JobResult, Outcome
from pipeline.supervisor.policies import SCORE

Z_95 = 1.959963984540054
"""Of the normal distribution 95 % are within so many standard deviations."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over prompts, and of how much of what was asked for it is."""

    value: float | None
    """None = no prompt has enough valid members."""
    valid: int
    """Valid members, of all prompts."""
    asked: int
    """Members asked for."""
    prompts: int
    """Prompts with enough valid members: the value is the mean over these."""
    prompts_asked: int
    interval: tuple[float, float] | None = field(default=None, compare=False)
    """95 %, of the mean over all prompts such as these (`interval_of`); None = they do not tell."""

    @property
    def is_whole(self) -> bool:
        """Whether everything that was asked for is in it."""
        return self.valid == self.asked and self.prompts == self.prompts_asked

    def __float__(self) -> float:
        return math.nan if self.value is None else self.value

    def __str__(self) -> str:
        value = "none" if self.value is None else f"{self.value:.4f}"
        return f"{value} ({self.valid} of {self.asked} members valid, {self.prompts} of {self.prompts_asked} prompts)"


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Chance that at least one of k samples passes, from n samples of which c passed; None when n < k, where no unbiased estimate exists.

    `1 - C(n-c, k) / C(n, k)`: the unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code"
    (arXiv 2107.03374), section 2.1. `1 - (1 - c/n)^k` would be biased low.
    """
    if n < k:
        return None
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_of(values: Sequence[float | None], valid: int, asked: int) -> Estimate:
    """The mean over prompts; None where a prompt has no value."""
    found = [value for value in values if value is not None]
    mean = math.fsum(found) / len(found) if found else None
    return Estimate(mean, valid, asked, len(found), len(values), interval_of(found, valid))


def interval_of(values: Sequence[float], members: int, *, z: float = Z_95) -> tuple[float, float] | None:
    """Where the mean over all prompts such as these lies, most of the time (95 %).

    Prompts are what is drawn at random; members of one prompt are alike, so they count less than as many prompts. Wilson's interval with
    an effective number of trials: as many as would give the mean the variance that the prompts show, members at most. The variance is that
    of the prompts and of two more, one that passes and one that fails: few prompts that nearly all pass would show next to none. It has a
    width where all passed or none did, and stays within [0, 1]. Of scores outside of that it is the normal one.

    Args:
        values: one a prompt.
        members: valid ones of all these prompts.
    """
    prompts = len(values)
    if not prompts:
        return None
    mean = math.fsum(values) / prompts
    if min(values) < 0 or max(values) > 1:
        if prompts == 1:
            return None
        half = z * math.sqrt(_variance_of_mean(values))
        return mean - half, mean + half
    widened = [*values, 0.0, 1.0]
    middle_rate = math.fsum(widened) / len(widened)
    trials = min(middle_rate * (1 - middle_rate) / _variance_of_mean(widened), float(max(members, prompts)))
    middle = (mean + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(mean * (1 - mean) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def _variance_of_mean(values: Sequence[float]) -> float:
    """Of two at least."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def score_of(record: JobResult, metric: str) -> float | None:
    """The score of one ended job, or None when it has none that may count: a fault of infrastructure is never a 0, and what the model
    broke never escapes its 0 (promise 7)."""
    if record.outcome not in (Outcome.OK, Outcome.MODEL_FAILURE):
        return None
    if metric in record.components:
        value: float | None = record.components[metric]
    elif metric == SCORE or (record.outcome is Outcome.MODEL_FAILURE and not record.components):
        value = 0.0 if record.reward is None and record.outcome is Outcome.MODEL_FAILURE else record.reward
    else:
        value = None
    # a reward of NaN is a fault of the grader even where the component is sound
    if value is None or not math.isfinite(value) or not (record.reward is None or math.isfinite(record.reward)):
        return None
    return value


def why_invalid(record: JobResult, metric: str) -> str:
    """What is wrong with a job that has no score."""
    if record.outcome in (Outcome.OK, Outcome.MODEL_FAILURE):
        return f"no usable {metric}"
    return f"{record.outcome}: {record.reason}" if record.reason else str(record.outcome)


__all__ = ["Estimate", "interval_of", "mean_of", "pass_at_k", "score_of", "why_invalid"]
