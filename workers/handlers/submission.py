"""What is judged without a model behind it: a reference answer, an empty one, or one that is graded again."""

from __future__ import annotations

from pipeline.messages import Json, StopReason, Trajectory


def submitted(answer: str, extra: Json | None = None) -> Trajectory:
    """A trajectory of no turns that ends with an answer.

    Args:
        extra: what the task keeps beside the answer (a patch).
    """
    return Trajectory(segments=(), turns=(), stop=StopReason.FINISHED, answer=answer, extra=extra or {})
