"""A call that samples from a network: what it has said, and with which weights."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np

from workers.llm.backend import Finish
from workers.llm.scripted.call import Call, Output, Seat
from workers.llm.tokenizer import Tokenizer


class Token(NamedTuple):
    """One that was drawn."""

    id: int
    logprob: float
    scored: dict[int, float]
    """Logprobs of the tokens that the request asks about, in its place."""


class TinySeat(Seat):
    """A call in flight.

    Args:
        end_ids: tokens that end a turn of this model, its own end token first, each with what is said of it: nothing of that one.
    """

    def __init__(self, call: Call, tokenizer: Tokenizer, end_ids: dict[int, int | None]) -> None:
        super().__init__(call)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.scored: list[dict[int, float]] = []
        self.prompt_logprobs: list[float] | None = None
        self.finish: Finish | None = None
        """None = it goes on."""
        self.stop_reason: int | str | None = None
        self.error: Exception | None = None
        """What kept the network from going on."""
        self._labels: list[str] = []
        self._random = np.random.Generator(np.random.Philox(key=call.seed % 2**64))
        self._text = tokenizer.stream() if call.stop else None
        self._said = ""
        self._end_id = next(iter(end_ids))
        self._ends: dict[int, int | None] = {} if call.ignore_eos else dict(end_ids)
        self._ends |= {id_: self._ends.get(id_, id_) for id_ in call.stop_token_ids}

    @property
    def all_ids(self) -> list[int]:
        """Prompt and what was sampled."""
        return [*self.call.prompt_ids, *self.ids]

    def uniform(self) -> float:
        """The number in [0, 1) that decides the next token; they follow from the seed alone."""
        return float(self._random.random())

    def forced(self) -> int | None:
        """The token that the request's script dictates here; behind its last one the model's end token."""
        script = self.call.script
        if script is None:
            return None
        return script[len(self.ids)] if len(self.ids) < len(script) else self._end_id

    def take(self, token: Token, label: str) -> None:
        """One more token, sampled by the weights of that label."""
        id_ = token.id
        self.ids.append(id_)
        self.logprobs.append(token.logprob)
        self.scored.append(token.scored)
        self._labels.append(label)
        if id_ in self._ends:
            self.finish, self.stop_reason = "stop", self._ends[id_]
        elif (found := self._stop_text(id_)) is not None:
            self.finish, self.stop_reason = "stop", found
        elif len(self.ids) >= self.call.sampling.max_tokens:
            self.finish = "length"

    def _stop_text(self, id_: int) -> str | None:
        if self._text is None:
            return None
        self._said += self._text.push(id_)
        return next((stop for stop in self.call.stop if stop in self._said), None)

    def output(self) -> Output:
        """The answer; of a call that did not come to an end, what it has."""
        spans: list[tuple[str, int, int]] = []
        for label, group in groupby(self._labels):
            start = spans[-1][2] if spans else 0
            spans.append((label, start, start + len(list(group))))
        return Output(
            token_ids=self.ids,
            logprobs=self.logprobs,
            finish=self.finish or "abort",
            stop_reason=self.stop_reason,
            spans=spans,
            cached_tokens=0,
            prompt_logprobs=self.prompt_logprobs,
            scored=self.scored if self.call.scored_ids else None,
        )
