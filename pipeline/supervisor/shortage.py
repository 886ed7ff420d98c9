"""What keeps a run from having enough groups at work. Pure: how long it lasts is measured by the script that is told of a change."""

from __future__ import annotations

from enum import StrEnum

from pipeline.supervisor.ledger import is_broken, reporter_is_silent
from pipeline.supervisor.replenishment import informative_rate, wanted_in_flight
from pipeline.supervisor.views import RunView


class Shortage(StrEnum):
    """Why. The values are names of counters: `short.<reason>` of a step, in milliseconds."""

    PAUSED = "paused"
    """Somebody paused the run: nothing is admitted."""
    NO_WORKERS = "no_workers"
    """A stage has no worker that beats, while groups are in flight."""
    BROKEN = "broken"
    """Infrastructure broke the last groups whole: one is tried now and then (`ledger.launch`)."""
    PROMPTS = "prompts"
    """The reserve has fewer prompts than should be in flight, and the trainer has not said that no more come."""
    TRAINER = "trainer"
    """The trainer reports the rewards, and gives no sign."""
    QUEUE_FULL = "queue_full"
    """Redis is at its memory bound and takes no new work."""


def shortage(view: RunView, *, refused: bool, stage_is_idle: bool) -> Shortage | None:
    """The reason that stands now, or None; of several the one to see to first.

    Args:
        refused: Redis took no new work when this look was made.
        stage_is_idle: some stage has no live worker.
    """
    if not view.steps or not view.is_open or view.cancelled_for:
        return None
    if view.paused:
        return Shortage.PAUSED
    if stage_is_idle and view.flying:
        return Shortage.NO_WORKERS
    if is_broken(view):
        return Shortage.BROKEN
    wanted = max(wanted_in_flight(view.steps, informative_rate(view.informative, view.judged)), default=0)
    if view.flying >= wanted:
        return None
    if reporter_is_silent(view):
        return Shortage.TRAINER
    if refused and view.reserve:
        return Shortage.QUEUE_FULL
    return Shortage.PROMPTS if not view.reserve and not view.prompts_ended else None
