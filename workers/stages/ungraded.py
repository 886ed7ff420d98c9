"""What the record of a job says of its trajectory, whether anybody judged it or not."""

from __future__ import annotations

from pipeline.messages import Outcome, Settlement, Trajectory
from pipeline.segment_sizes import sizes_of
from pipeline.trajectory_counts import counts_of


def ungraded(trajectory: Trajectory) -> Settlement:
    """The end of a job whose wall deadline came before its trajectory was judged; its figures are those of any end."""
    versions = [span.version for segment in trajectory.segments for span in segment.versions]
    return Settlement(
        outcome=Outcome.EXPIRED,
        reason="deadline",
        stop=trajectory.stop.value,
        sampled_tokens=sum(int(segment.sampled_mask.sum()) for segment in trajectory.segments),
        total_tokens=sum(len(segment.token_ids) for segment in trajectory.segments),
        turns=len(trajectory.turns),
        first_version=versions[0] if versions else "",
        last_version=versions[-1] if versions else "",
        segments=sizes_of(trajectory),
        counts=counts_of(trajectory),
    )
