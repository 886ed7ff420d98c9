"""One typed function for each script about a run as a whole: its validations, its share, its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import RunClosed
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.replies import check_refusal, text, whole
from pipeline.scripts.runner import Arg, ScriptRunner


@dataclass(frozen=True, slots=True)
class OpenedValidation:
    """What became of asking for a validation."""

    state: Literal["open", "acked", "other", "unversioned"]
    """`other`: another request has this index. `unversioned`: it asked to be pinned, and the run has no version yet."""
    index: int = 0
    serial: int = 0
    """Number of this validation in its run; its group ids are made of it."""
    pin: str = ""
    """Label of the version it is pinned to, or compared with; empty = none is known."""


@dataclass(frozen=True, slots=True)
class RunShare:
    """What a run may have."""

    state: str
    weight: float
    quota: int
    """Most jobs in flight; 0 = no bound."""
    paused: bool


@dataclass(frozen=True, slots=True)
class GoneRun:
    """A run whose trainer is gone, with jobs that are left to cancel."""

    run: str
    incarnation: int
    closed_now: bool
    silent_s: float
    """For how long its trainer gave no sign; only said when it is closed now."""


class RunScripts:
    """These scripts on one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self.run_script = ScriptRunner(client, keys)

    async def open_validation(
        self, run: str, incarnation: int, *, index: int | None, digest: str, base: int, version: str
    ) -> OpenedValidation:
        """Asks for a validation; again with the same index: the same one.

        Args:
            index: the trainer's name for it; None = the next free one.
            digest: of the request.
            base: incarnation in which this history of the run began.
            version: empty = any, `pinned` = the run's current one, else a label.

        Raises:
            StaleIncarnation, RunClosed
        """
        reply = await self.run_script("open_validation", run, incarnation, "" if index is None else index, digest, base, version)
        check_refusal(reply, run, incarnation)
        match text(reply[0]):
            case "open":
                return OpenedValidation("open", whole(reply[1]), whole(reply[2]), text(reply[3]))
            case "acked":
                return OpenedValidation("acked", whole(reply[1]))
            case "other":
                return OpenedValidation("other", whole(reply[1]))
            case _:
                return OpenedValidation("unversioned")

    async def end_validation(self, run: str, incarnation: int, index: int, serial: int) -> None:
        """Marks a validation as acked.

        Raises:
            StaleIncarnation, RunClosed
        """
        check_refusal(await self.run_script("end_validation", run, incarnation, index, serial), run, incarnation)

    async def set_run(
        self, run: str, *, weight: float | None = None, quota: int | None = None, paused: bool | None = None, window: int
    ) -> RunShare:
        """Changes what a run may have; None = as it is. Returns how it stands now.

        Raises:
            RunClosed: Redis does not know the run.
        """
        words: list[Arg] = ["" if word is None else word for word in (weight, quota, None if paused is None else int(paused))]
        reply = await self.run_script("set_run", run, *words, window)
        if reply[0] != b"ok":
            raise RunClosed(run, text(reply[1]))
        state, weight_now, quota_now, paused_now = map(text, reply[1:5])
        return RunShare(state, float(weight_now), int(quota_now), paused_now == "1")

    async def close_gone_runs(self, place: int, most: int) -> tuple[int, list[GoneRun]]:
        """Closes runs whose trainer is gone, among `most` of them; returns where to go on (-1 = all were seen) and those with jobs left."""
        reply = await self.run_script("close_gone_runs", place, most)
        words = [text(word) for word in reply]
        gone = [GoneRun(words[i], int(words[i + 1]), words[i + 2] == "1", int(words[i + 3]) / 1000) for i in range(1, len(words), 4)]
        return int(words[0]), gone
