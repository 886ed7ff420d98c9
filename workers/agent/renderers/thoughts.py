"""Thoughts in sampled turns, as ids: whether one is open, and a dialogue without them.

Only families that write thoughts as `<think>...</think>` have them here.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.llm import chatml
from workers.llm.tokenizer import Tokenizer


def ends_in_thought(text: str, *, opened: bool) -> bool:
    """Whether a turn ends inside a thought.

    Args:
        text: the turn.
        opened: whether its prompt had opened one.
    """
    begun, ended = text.rfind(chatml.THINK_OPEN), text.rfind(chatml.THINK_CLOSE)
    return begun > ended if max(begun, ended) >= 0 else opened


class ThoughtCutter:
    """Cuts thoughts out of the ids of a dialogue; what is left keeps the tokens it was sampled with.

    Args:
        opening: ids at the end of a prompt that open a thought for the model; empty = the model opens its own.
        ends: ids that end a turn; they stay.

    Raises:
        ValueError: the vocabulary has no tokens for the tags, so thoughts could only be found by reading text.
    """

    def __init__(self, tokenizer: Tokenizer, opening: Sequence[int], ends: Sequence[int]) -> None:
        try:
            self._open = tokenizer.special(chatml.THINK_OPEN)
            self._close = tokenizer.special(chatml.THINK_CLOSE)
        except KeyError as error:
            raise ValueError(f"thoughts are cut at the tokens {chatml.THINK_OPEN} and {chatml.THINK_CLOSE}, but {error.args[0]}") from None
        self._tokenizer = tokenizer
        self._opening = list(opening)
        self._ends = frozenset(ends)

    def cut(self, ids: Sequence[int], turns: Sequence[tuple[int, int]]) -> tuple[list[int], int, list[tuple[int, int]]]:
        """The ids without the thoughts of the turns: without the tag that a prompt opened one with, what was said up to the last closing
        tag with the line ends after it, and all of an unfinished thought with what was put behind it to close it.
        And how many of the last turn are left; and where what stands between turns begins, before and after.
        """
        kept: list[int] = []
        moved: list[tuple[int, int]] = []
        place = n_last = 0
        for start, end in turns:
            before, turn = list(ids[place:start]), list(ids[start:end])
            opened = bool(self._opening) and before[-len(self._opening) :] == self._opening
            rest, unfinished = self._without_thoughts(turn, opened=opened)
            if opened:
                del before[len(before) - len(self._opening) :]
            moved.append((place, len(kept)))
            kept += before + rest
            n_last = len(rest)
            place = end + (self._closers(ids[end:]) if unfinished else 0)
        moved.append((place, len(kept)))
        return kept + list(ids[place:]), n_last, moved

    def _without_thoughts(self, turn: list[int], *, opened: bool) -> tuple[list[int], bool]:
        """A turn without its thoughts, and whether the last one was never finished."""
        end = turn[-1:] if turn and turn[-1] in self._ends else []
        said = turn[: len(turn) - len(end)]
        if self._close in said:
            after = len(said) - said[::-1].index(self._close)
            said = said[after + self._line_ends(said[after:]) :]
            opened = False
        if opened or self._open in said:
            return (said[: said.index(self._open)] if self._open in said and not opened else []) + end, not end
        return said + end, False

    def _closers(self, following: Sequence[int]) -> int:
        """How many tokens behind a turn close its thought: none after one that another segment or a stop string left open."""
        for place, id_ in enumerate(following):
            if id_ in self._ends:
                return 0
            if id_ == self._close:
                return place + 1 + self._line_ends(following[place + 1 :])
        return 0

    def _line_ends(self, ids: Sequence[int]) -> int:
        """How many tokens at the start hold line ends only."""
        n = 0
        while n < len(ids) and not self._tokenizer.decode([ids[n]]).strip("\n"):
            n += 1
        return n
