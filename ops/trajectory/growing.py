"""A trajectory on a terminal while it grows: each turn once, when it is finished."""

from __future__ import annotations

from rich.console import Console

from ops.trajectory.pieces import fitting, parts_of
from ops.trajectory.view import Painter
from pipeline.messages import StopReason, Trajectory
from workers.agent.trajectory import TrajectoryRecorder, TurnDelta
from workers.llm.tokenizer import Tokenizer


class GrowingTrajectory:
    """Shows turns as the journal is told of them.

    Args:
        tokenizer: used where the record was made with it; None = ids.
        whole: context uncut.
    """

    def __init__(self, console: Console, tokenizer: Tokenizer | None, *, whole: bool = False) -> None:
        self._console = console
        self._tokenizer = tokenizer
        self._whole = whole
        self._deltas: list[TurnDelta] = []
        self._shown: set[int] = set()

    async def journal(self, delta: TurnDelta) -> None:
        """One more finished turn, as RUN journals it."""
        self._deltas.append(delta)
        self._show(TrajectoryRecorder.replay(self._deltas).trajectory(StopReason.LOST), ended=False)

    def end(self, trajectory: Trajectory) -> None:
        """What is not shown yet, and how it ended."""
        self._show(trajectory, ended=True)
        self._console.print(f"[bold]stopped: {trajectory.stop.value} after {len(trajectory.turns)} turns[/bold]")

    def _show(self, trajectory: Trajectory, *, ended: bool) -> None:
        fits = fitting(trajectory, self._tokenizer)
        painter = Painter(self._console, ids=fits is None, every_logprob=False, whole=self._whole)
        for part in parts_of(trajectory, fits):
            index = part.turn.index if part.turn is not None else None
            if index in self._shown or (index is None and not ended):
                continue
            painter.part(part, trajectory.segments[part.segment].began, trajectory.segments[part.segment].parent)
            if index is not None:
                self._shown.add(index)
