"""A validation as a trainer sees it: every prompt, every member, and numbers that say what they are of."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from pipeline.messages import Json
from pipeline.requests import bounded_int
from pipeline.validation_request import ValidationRequest
from trainer_client.bodies import BodyStore
from trainer_client.on_loop import OnLoop
from trainer_client.results import Result, fetch_trajectories
from trainer_client.validation_numbers import Estimate, mean_of, pass_at_k


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationMember(OnLoop):
    """One sample of a prompt."""

    number: int
    result: Result
    """How it ended; of a member that was drawn again, the last time."""
    earlier: tuple[Result, ...]
    """The draws before that one, none of them valid."""
    score: float | None
    """None = it is not valid and counts nowhere."""
    passes: bool
    why: str
    """Why it is not valid; empty when it is."""

    @property
    def is_valid(self) -> bool:
        return self.score is not None


class ValidationGroup(OnLoop):
    """One prompt and its members."""

    def __init__(self, row: int, prompt: Json, members: Sequence[ValidationMember]) -> None:
        self.row = row
        """Place of the prompt in the request."""
        self.prompt = prompt
        """The row itself."""
        self.members = tuple(members)
        """All that were asked for, by number."""

    @property
    def n_valid(self) -> int:
        return sum(member.is_valid for member in self.members)

    @property
    def n_passed(self) -> int:
        return sum(member.passes for member in self.members)

    @property
    def scores(self) -> tuple[float | None, ...]:
        """A score for each member, None where it is not valid."""
        return tuple(member.score for member in self.members)

    @property
    def mean(self) -> float | None:
        """Over valid members; None when there is none."""
        valid = [score for score in self.scores if score is not None]
        return statistics.fmean(valid) if valid else None

    def pass_at(self, k: int) -> float | None:
        """Unbiased estimate of the chance that one of k samples passes; None with fewer than k valid members."""
        return pass_at_k(self.n_valid, self.n_passed, k)

    def __repr__(self) -> str:
        return f"<ValidationGroup {self.row} scores={list(self.scores)}>"


class Validation(OnLoop):
    """A validation of which every member has ended."""

    def __init__(
        self,
        index: int,
        request: ValidationRequest,
        pin: str,
        groups: Iterable[ValidationGroup],
        bodies: BodyStore,
        ack: Callable[[], Awaitable[None]],
    ) -> None:
        self.index = index
        """The trainer's name for it: ask for the same again with it."""
        self.request = request
        self.version = pin
        """Label it is pinned to, or compared with; empty when the run had no version."""
        self.groups = tuple(groups)
        """One a prompt, in the order of the request."""
        self._bodies = bodies
        self._ack = ack

    @property
    def members(self) -> tuple[ValidationMember, ...]:
        return tuple(member for group in self.groups for member in group.members)

    @property
    def results(self) -> tuple[Result, ...]:
        """Every draw, those that were drawn again included."""
        return tuple(result for member in self.members for result in (*member.earlier, member.result))

    @property
    def n_valid(self) -> int:
        return sum(group.n_valid for group in self.groups)

    @property
    def why_invalid(self) -> dict[str, int]:
        """Why members are not valid, and how many for each reason; the most frequent first."""
        return dict(Counter(member.why for member in self.members if not member.is_valid).most_common())

    @property
    def n_asked(self) -> int:
        return len(self.groups) * self.request.n

    @property
    def mean_at_k(self) -> Estimate:
        """Mean over prompts of the mean over their valid members (mean@k with k = `request.n`)."""
        return mean_of([group.mean for group in self.groups], self.n_valid, self.n_asked)

    def pass_at(self, k: int) -> Estimate:
        """Chance that one of k samples of a prompt passes, in the mean over prompts with at least k valid members (`pass_at_k`).

        Raises:
            InvalidRequest: more than there are samples of a prompt.
        """
        bounded_int(k, "k", low=1, high=self.request.n)
        return mean_of([group.pass_at(k) for group in self.groups], self.n_valid, self.n_asked)

    @property
    def versions(self) -> tuple[str, ...]:
        """Labels of the versions that sampled valid members, as far as servers say; in order of their first appearance."""
        labels = [label for member in self.members if member.is_valid for label in _labels(member.result)]
        return tuple(dict.fromkeys(labels))

    @property
    def is_mixed(self) -> bool:
        """Whether a valid member was sampled by another version than the pin, or, without a pin, more than one version sampled."""
        return any(label != self.version for label in self.versions) if self.version else len(self.versions) > 1

    @property
    def sampled_tokens(self) -> int:
        """Of all draws."""
        return sum(result.record.sampled_tokens for result in self.results)

    @property
    def total_tokens(self) -> int:
        return sum(result.record.total_tokens for result in self.results)

    @property
    def metrics(self) -> dict[str, float]:
        """Flat numbers, the same names in every validation. `pass_at_k` is that of k = n. A mean of nothing is NaN."""
        lengths = [member.result.record.sampled_tokens for member in self.members if member.is_valid]
        return {
            "mean_at_k": float(self.mean_at_k),
            "pass_at_1": float(self.pass_at(1)),
            "pass_at_k": float(self.pass_at(self.request.n)),
            "members_asked": float(self.n_asked),
            "members_valid": float(self.n_valid),
            "members_redrawn": float(sum(bool(member.earlier) for member in self.members)),
            "prompts_asked": float(len(self.groups)),
            "prompts_valid": float(sum(group.n_valid > 0 for group in self.groups)),
            "sampled_tokens": float(self.sampled_tokens),
            "sampled_tokens_mean": statistics.fmean(lengths) if lengths else 0.0,
            "total_tokens": float(self.total_tokens),
            "is_mixed": float(self.is_mixed),
        }

    async def fetch(self) -> None:
        """Brings the bytes of all trajectories of valid members in few calls."""
        await fetch_trajectories([member.result for member in self.members if member.is_valid], self._bodies)

    async def ack(self) -> None:
        """Lets go of all of it: bodies and records go. Again: nothing happens."""
        await self._ack()

    def __repr__(self) -> str:
        return f"<Validation {self.index} mean_at_k={self.mean_at_k}{' mixed' if self.is_mixed else ''}>"


def member_of(number: int, draws: Sequence[Result], score: float | None, why: str, threshold: float) -> ValidationMember:
    """A member from its draws, oldest first."""
    return ValidationMember(
        number=number,
        result=draws[-1],
        earlier=tuple(draws[:-1]),
        score=score,
        passes=score is not None and score >= threshold,
        why=why,
    )


def other_version(result: Result, pin: str) -> str:
    """A version other than the pin that sampled a part of this; empty when none is known."""
    return next((label for label in _labels(result) if pin and label != pin), "")


def _labels(result: Result) -> tuple[str, ...]:
    return tuple(label for label in (result.record.first_version, result.record.last_version) if label)


__all__ = ["Validation", "ValidationGroup", "ValidationMember", "member_of", "other_version"]
