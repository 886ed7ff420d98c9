"""What a reward service is asked, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One answer to be scored."""

    question: str
    """As the model was asked it."""
    reference: str
    """What is right; empty = there is none, which no judge takes."""
    response: str
    """The last message of the model, whole."""
    answer: str
    """The part of it that is the answer; empty = it has none, and scores 0 without being sent anywhere."""
    task: str
    """The job's task: `data_source` of a remote scorer."""
    prompt_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What came back."""

    score: float
    """From 0 to 1."""
    reason: str
    """A fixed word: `scored`, `correct`, `incorrect`, `no_answer`, `long`."""
    components: Mapping[str, float] = field(default_factory=dict)
    said: str = ""
    """The end of what a judge wrote, for people."""
