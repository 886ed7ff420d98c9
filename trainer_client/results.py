"""How jobs ended, and the way to what they made.

The record of a result is in memory; its trajectory and grade are fetched when asked for, decoded when asked for, and kept until the result
is acked. A damaged body is an error of that one result only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from pipeline.codec import decode
from pipeline.errors import InvalidRequest
from pipeline.keys import Keys
from pipeline.messages import Grade, JobResult, Outcome, Segment, Trajectory
from pipeline.supervisor.loss_policy import Loss
from trainer_client.bodies import BodyStore
from trainer_client.errors import GONE, BodyMissing
from trainer_client.on_loop import OnLoop

LOST = "Redis lost its last writes, and with them this end of the job. It runs again: await its result anew, or let go of it with ack"


class Result(OnLoop):
    """One ended job."""

    def __init__(self, record: JobResult, bodies: BodyStore, keys: Keys, ack: Callable[[Sequence[Result]], Awaitable[None]]) -> None:
        self.record = record
        self.loss = Loss.TRAIN
        """What is trained of it. A member of a group has what its step says for its stop reason; masked, its `loss_mask` is all 0."""
        self._bodies = bodies
        self._keys = keys
        self._ack = ack
        self.was_given = False
        """Whether the trainer has it."""
        self.is_lost = False
        """Whether Redis has lost its end, so that it comes again, with what the job makes then."""
        self._raw: dict[str, bytes | None] = {}
        self._trajectory: Trajectory | None = None

    @property
    def job(self) -> str:
        """Id of the job."""
        return self.record.job

    @property
    def outcome(self) -> Outcome:
        return self.record.outcome

    @property
    def reason(self) -> str:
        """Why it ended so, in a word or two."""
        return self.record.reason

    @property
    def reward(self) -> float | None:
        """The unshaped task score; None = none, never 0 in its place."""
        return self.record.reward

    @property
    def trajectory_key(self) -> str:
        """Where its trajectory is; empty when it made none."""
        return self._keys.body(self.record.job, self.record.run_attempt, "run") if self.record.run_attempt else ""

    @property
    def grade_key(self) -> str:
        """Where its grade is; empty when it got none."""
        return self._keys.body(self.record.job, self.record.eval_attempt, "eval") if self.record.eval_attempt else ""

    async def trajectory(self) -> Trajectory:
        """What the job produced. Arrays are read-only views of the bytes that came.

        Raises:
            BodyMissing: it ended before RUN did, or was acked.
            DamagedBody: the bytes are no trajectory.
        """
        if self._trajectory is None:
            found = decode(Trajectory, await self._body("trajectory", self.trajectory_key))
            self._trajectory = found if self.loss is Loss.TRAIN else without_loss(found)
        return self._trajectory

    async def grade(self) -> Grade:
        """What EVAL found.

        Raises:
            BodyMissing: it ended before EVAL did, or was acked.
            DamagedBody: the bytes are no grade.
        """
        return decode(Grade, await self._body("grade", self.grade_key))

    async def ack(self) -> None:
        """Lets go of it: its bodies and its record are deleted. Again: nothing happens.

        Raises:
            InvalidRequest: it is a member of a group, which is acked with its step.
        """
        if self.record.group:
            raise InvalidRequest(f"{self.job} is a member of a group: ack the step that it belongs to", field="result")
        await self._ack([self])

    def renew(self, record: JobResult) -> None:
        """The job ended again: Redis had lost its end, and with it what it made."""
        self.record = record
        self.is_lost = False
        self.forget()

    @property
    def was_read(self) -> bool:
        """Whether what it made was asked for."""
        return any(raw is not None for raw in self._raw.values())

    def forget(self) -> None:
        """Frees the memory of what was fetched."""
        self._raw.clear()
        self._trajectory = None

    async def _body(self, name: str, key: str) -> bytes:
        if not key:
            raise BodyMissing(self.job, name, f"it ended as {self.outcome} ({self.reason or 'no reason given'}) before there was one")
        if key not in self._raw:
            await fetch_bodies([self], [key], self._bodies)
        raw = self._raw[key]
        if raw is None:
            del self._raw[key]
            raise BodyMissing(self.job, name, f"{key} is not in Redis: {LOST if self.is_lost else GONE}")
        return raw

    def put(self, key: str, raw: bytes | None) -> None:
        """Keeps bytes that were fetched."""
        self._raw[key] = raw

    def lacks(self, key: str) -> bool:
        """Whether a body is still to be fetched."""
        return bool(key) and key not in self._raw

    def __repr__(self) -> str:
        reward = "" if self.reward is None else f" reward={self.reward:g}"
        return f"<Result {self.job} {self.outcome}{reward}{f' ({self.reason})' if self.reason else ''}>"


def without_loss(trajectory: Trajectory) -> Trajectory:
    """The same with loss masks that are all 0."""
    return replace(trajectory, segments=tuple(map(_masked, trajectory.segments)))


def _masked(segment: Segment) -> Segment:
    nothing = np.zeros_like(segment.loss_mask)
    nothing.setflags(write=False)
    return replace(segment, loss_mask=nothing)


async def fetch_trajectories(results: Sequence[Result], bodies: BodyStore) -> None:
    """Brings the bytes of many trajectories in few calls; nothing is decoded, and those that are here already are not asked for again."""
    wanted = [(result, result.trajectory_key) for result in results if result.lacks(result.trajectory_key)]
    await fetch_bodies([result for result, _ in wanted], [key for _, key in wanted], bodies)


async def fetch_bodies(results: Sequence[Result], keys: Sequence[str], bodies: BodyStore) -> None:
    """Brings one body for each result."""
    for result, key, raw in zip(results, keys, await bodies.fetch(keys), strict=True):
        result.put(key, raw)
