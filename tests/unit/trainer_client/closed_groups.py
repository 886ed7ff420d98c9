"""Records of closed groups as a client reads them."""

from __future__ import annotations

from dataclasses import replace

from pipeline.supervisor.actions import Verdict
from trainer_client.records import GroupRecord


def a_closed_group(verdict: Verdict, **changes: object) -> GroupRecord:
    """A group of two members, accounted to step 4."""
    group = GroupRecord(
        entry="1-0",
        run="r",
        group="r.e0-1.0",
        prompt="e0-1",
        draw=0,
        verdict=verdict,
        why="",
        step=4,
        want=2,
        valid=2,
        values=(),
        mean=0.5,
        spread=1.0,
        sampled_tokens=20,
        total_tokens=60,
        first_version="1.0",
        last_version="1.0",
        incarnation=1,
    )
    return replace(group, **changes)  # type: ignore[arg-type]  # the record's own fields
