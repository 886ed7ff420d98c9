"""One typed function for each script that only a trainer's client calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.calls import MAX_BATCH
from pipeline.scripts.replies import check_refusal, text, whole
from pipeline.scripts.runner import Arg, ScriptRunner

RESTORED_A_CALL = 32
"""Groups that one script ends: some milliseconds of the server."""

Done = Literal["trained", "filtered", "dead"]
"""States of a prompt that is not drawn again."""


@dataclass(frozen=True, slots=True)
class HadGroup:
    """A group that the trainer has had."""

    id: str
    """Empty = not known which one: its prompt is done with, and nothing of it is wanted."""
    prompt: str
    draw: int
    verdict: Done
    """What became of its prompt."""


class TrainerScripts:
    """These scripts on one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self.run_script = ScriptRunner(client, keys)

    async def extend(self, run: str, incarnation: int, units: Sequence[tuple[Literal["job", "group"], str]]) -> int:
        """Lets results that are not acked, at most `MAX_BATCH`, live for another time to live of their run; returns how many are gone.

        Raises:
            StaleIncarnation, RunClosed
        """
        args: list[Arg] = [run, incarnation]
        for unit in units[:MAX_BATCH]:
            args += unit
        reply = await self.run_script("extend", *args)
        check_refusal(reply, run, incarnation)
        return whole(reply[1])

    async def set_version(self, run: str, incarnation: int, number: int) -> None:
        """Says which version the policy has from now on. The same again changes nothing.

        Raises:
            InvalidRequest: lower than what stands.
            StaleIncarnation, RunClosed
        """
        reply = await self.run_script("set_version", run, incarnation, number)
        check_refusal(reply, run, incarnation)
        if reply[0] == b"back":
            raise InvalidRequest(
                f"expected {text(reply[1])} or more, the version that run {run!r} has in this incarnation, got {number}: "
                "connect with resume=<state of an older checkpoint> to go back",
                field="version",
            )

    async def save_state(self, run: str, incarnation: int, state: bytes) -> None:
        """Keeps where the trainer stands.

        Raises:
            StaleIncarnation, RunClosed
        """
        reply = await self.run_script("save_state", run, incarnation, state)
        check_refusal(reply, run, incarnation)

    async def restore_steps(
        self, run: str, incarnation: int, first: int, last: int, groups: Sequence[HadGroup]
    ) -> tuple[frozenset[int], frozenset[str]]:
        """Puts the ledger where the trainer stands, which has had steps that Redis has lost; safe to repeat.

        Args:
            first, last: index of the first and of the last of these steps.
            groups: what they had; those of `RESTORED_A_CALL` in one script.

        Returns:
            The steps that stand no more, to be opened again if they are still wanted, and the groups that go to a later step.

        Raises:
            StaleIncarnation, RunClosed
        """
        steps, taken_back = set[int](), set[str]()
        for at in range(0, max(1, len(groups)), RESTORED_A_CALL):
            args: list[Arg] = [run, incarnation, first, last]
            for group in groups[at : at + RESTORED_A_CALL]:
                args += [group.id, group.prompt, group.draw, group.verdict]
            reply = await self.run_script("restore_steps", *args)
            check_refusal(reply, run, incarnation)
            steps |= set(map(int, text(reply[1]).split()))
            taken_back |= set(text(reply[2]).split())
        return frozenset(steps), frozenset(taken_back - {group.id for group in groups})

    async def stand_still(self, run: str, incarnation: int, holder: str, *, lease_s: float) -> float:
        """Lets the deadlines of a run stand still for one lease, or for one more; with a lease of 0 they go on.

        Returns how many seconds they stood in the life of the run.

        Raises:
            StaleIncarnation, RunClosed
        """
        reply = await self.run_script("stand_still", run, incarnation, holder, int(lease_s * 1000))
        check_refusal(reply, run, incarnation)
        return whole(reply[1]) / 1000
