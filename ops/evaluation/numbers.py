"""The numbers of an evaluation, from its results alone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.evaluation.results import RowResult
from trainer_client.validation_numbers import Estimate, mean_of, pass_at_k


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What came out."""

    estimates: Mapping[str, Estimate]
    """`pass@1`, `pass@k` for each k that was asked for, `mean score`."""
    rows: int
    """Rows that are done."""
    rows_asked: int
    valid: int
    asked: int
    """Samples of the rows that are done."""
    why_invalid: Mapping[str, int]
    """Of samples that are not valid; the most frequent first."""
    sampled_tokens: int
    """Of valid samples."""

    @property
    def is_whole(self) -> bool:
        """Whether every row is done."""
        return self.rows == self.rows_asked


def numbers_of(rows: Sequence[RowResult], *, ks: Sequence[int], rows_asked: int) -> Numbers:
    """The numbers of some rows.

    Args:
        ks: of the pass@k.
    """
    valid = sum(row.n_valid for row in rows)
    asked = sum(len(row.samples) for row in rows)
    means = []
    for row in rows:
        scores = [score for score in row.scores if score is not None]
        means.append(statistics.fmean(scores) if scores else None)
    estimates = {f"pass@{k}": mean_of([pass_at_k(row.n_valid, row.n_passed, k) for row in rows], valid, asked) for k in ks}
    why = Counter(str(sample["why"]) for row in rows for sample in row.samples if sample["score"] is None)
    return Numbers(
        estimates={**estimates, "mean score": mean_of(means, valid, asked)},
        rows=len(rows),
        rows_asked=rows_asked,
        valid=valid,
        asked=asked,
        why_invalid=dict(why.most_common()),
        sampled_tokens=sum(sample["sampled_tokens"] for row in rows for sample in row.samples if sample["score"] is not None),
    )


def numbers_as_map(numbers: Numbers) -> dict[str, Any]:
    """For a program."""
    return {
        "metrics": {
            name: {
                "value": estimate.value,
                "low": estimate.interval[0] if estimate.interval else None,
                "high": estimate.interval[1] if estimate.interval else None,
                "rows": estimate.prompts,
            }
            for name, estimate in numbers.estimates.items()
        },
        "rows": numbers.rows,
        "rows_asked": numbers.rows_asked,
        "valid": numbers.valid,
        "asked": numbers.asked,
        "why_invalid": dict(numbers.why_invalid),
        "sampled_tokens": numbers.sampled_tokens,
    }
