"""Something that answers the model's turns by itself: a game, a simulated user, a text environment.

A dialogue with a world is one of user turns beside, or in place of, answers of tools. The loop asks it after a turn that calls no tool:

    model   a move                     world   what is seen then, as the next user message
    model   another one                world   what is seen then, and that it is over: the trajectory ends

A turn that calls a tool is answered by that tool, and the world hears nothing of it. A turn that was cut off is no move. The gate, the
bound of an observation, the journal and the limits hold for a world's answers as for a tool's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pipeline.errors import RollstreamError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldReply:
    """What a world says to a move."""

    text: str
    """The next user message; the last one is kept with the trajectory's messages, and no token is made of it."""
    ends: bool = False
    """Whether nothing can be done in it any more."""


class World(Protocol):
    """One course of a world, beside one trajectory."""

    async def answer(self, said: str, *, timeout_s: float) -> WorldReply:
        """Takes the model's message, without what it thought, for a move.

        Cancelled, it ends what it started. It ends by itself within `timeout_s`, with an error of its own. What it spends inside
        `ActiveTime.waiting` (for a place, for finding out what broke) is not the model's, and does not count.
        """


class WorldOverran(RollstreamError):
    """A world did not end at its time limit, nor within the grace after it: it is broken."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"the world did not answer within {waited_s:g} s, nor say that it cannot")
        self.waited_s = waited_s
