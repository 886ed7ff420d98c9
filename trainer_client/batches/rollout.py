"""One member of a trained group as plain values: what rows, batches and adapters are made of.

It holds no connection: whoever has it can keep it, send it to another process, or make one for a test. Of images it has the place of their
files, which are there until the ack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from pipeline.blobs import BlobStore, ExpertRows
from pipeline.messages import Json, Outcome, Trajectory
from pipeline.supervisor.loss_policy import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One member of a trained group."""

    job: str
    run: str
    step: int
    group: str
    """Id of its group: `<run>.<prompt>.<draw>`."""
    prompt_id: str
    """Id of the prompt: `e<epoch>-<row>`."""
    draw: int
    member: int
    """Its number in the group, from 0 on; numbers of members that do not count are left out."""
    group_size: int
    """Members that count in the statistics of its group; at most the step's `n`."""
    task: str = ""
    outcome: Outcome = Outcome.OK
    stop: str = ""
    """Why the agent's turns ended (`StopReason`); text, since a newer worker may have one that is not known here."""
    loss: Loss = Loss.TRAIN
    """`mask`: it is in the baseline and the loss masks of its trajectory are all 0."""
    reward: float = 0.0
    """The unshaped task score; 0 for what failed by the model's doing and got none."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward."""
    advantage: float | None = None
    """None = nobody asked for one."""
    staleness: int | None = None
    """Updates between the oldest version of its group and the one it is trained with; None = not known."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds a stage, and `total`."""
    trajectory: Trajectory
    experts: tuple[ExpertRows | None, ...] = ()
    """Experts that tokens were routed to, of each segment, None where nothing was sampled; empty where nobody asked for them. See
    `experts_of`."""
    blobs: BlobStore | None = field(default=None, repr=False, compare=False)
    """Where the files of its images lie; None where nobody asked for them."""
    data: Json = field(default_factory=dict)
    """The prompt's row as it was fed; empty where it was not asked for."""

    @property
    def turn_rewards(self) -> tuple[float | None, ...]:
        """A reward of each turn where the task's handler gave some: the list `turn_rewards` in the trajectory's `extra`, with null for a
        turn without one. The tokens of a turn are those from its `start` to its `end`. Empty = it gave none.

        Nothing is made of them here: a trainer passes what it makes of them as `token_advantages`.

        Raises:
            ValueError: there is no number for each turn.
        """
        found = self.trajectory.extra.get("turn_rewards")
        if found is None:
            return ()
        turns = len(self.trajectory.turns)
        if not isinstance(found, list | tuple) or len(found) != turns:
            raise ValueError(f"{self.job}: expected turn_rewards to be a list of {turns}, one a turn, got {str(found)[:80]}")
        if any(
            value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value)) for value in found
        ):
            raise ValueError(f"{self.job}: expected turn_rewards to be finite numbers or null, got {str(found)[:80]}")
        return tuple(None if value is None else float(value) for value in found)


__all__ = ["Rollout"]
