"""What renderers have in common whose template is written here: prompts from parts, deltas from a synthetic context.

A delta is taken from a short dialogue, a user's word and an answer, rendered with the new messages behind it: what comes after the end
token of that answer is what comes after the end token of any answer. Encoding the new messages alone would miss what a template puts
between messages.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pipeline.messages import ChatMessage, Json
from workers.agent.renderers.base import THINKING_DROPPED, Prompt
from workers.agent.renderers.parts import Part, encode_parts, splitter
from workers.agent.renderers.thoughts import ThoughtCutter
from workers.agent.tool_calls import Format, ParsedTurn, parse_turn
from workers.llm.images import PlacedImage
from workers.llm.tokenizer import Tokenizer

CONTEXT = (ChatMessage(role="user", content="."), ChatMessage(role="assistant", content="."))
"""The synthetic dialogue that deltas are taken behind."""
FINGERPRINTED: tuple[ChatMessage, ...] = tuple(
    ChatMessage(role=role, content=role) for role in ("system", "user", "assistant", "tool", "tool", "user")
)


class WrittenRenderer(ABC):
    """A template as Python.

    Args:
        tokenizer: must have the family's control tokens.
        end: the token that ends an answer.
        ends: all tokens that end a sampled turn, `end` first; those in `closing` among them need no `end` behind them.
    """

    family: ClassVar[str]
    tool_format: Format

    def __init__(self, tokenizer: Tokenizer, *, end: str, other_ends: Sequence[str], closing: Sequence[str], keep_thinking: bool) -> None:
        self.tokenizer = tokenizer
        self.keeps_thinking = keep_thinking
        self._end_text = end
        self._end = tokenizer.special(end)
        self.stop_token_ids = (self._end, *(tokenizer.specials[name] for name in other_ends if name in tokenizer.specials))
        self._closing = frozenset({self._end, *(tokenizer.specials[name] for name in closing if name in tokenizer.specials)})
        self._template = splitter(tokenizer.specials)
        self._thoughts: ThoughtCutter | None = None
        self._before: list[Part] = []
        """The parts of `CONTEXT` up to the end of its answer."""

    @property
    @abstractmethod
    def template_kwargs(self) -> Json:
        """See `Renderer`."""

    @abstractmethod
    def _parts(self, messages: Sequence[ChatMessage], tools: Sequence[Json], *, generate: bool) -> list[Part]:
        """The rendering of a dialogue; with `generate` it ends where the model speaks."""

    @abstractmethod
    def _in_thought(self) -> bool | None:
        """`Prompt.in_thought` of each prompt."""

    def _closers(self, turn: Sequence[int]) -> list[int]:
        """What a turn misses that does not end with one of `closing`."""
        return [self._end]

    def first_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Json]) -> Prompt:
        """The prompt of the first turn."""
        if not messages:
            raise ValueError("expected at least one message")
        images: list[PlacedImage] = []
        ids = encode_parts(self.tokenizer, self._parts(messages, tools, generate=True), images)
        return Prompt(ids, self._in_thought(), images=images)

    def next_prompt(
        self, ids: Sequence[int], turns: Sequence[tuple[int, int]], messages: Sequence[ChatMessage], images: Sequence[PlacedImage] = ()
    ) -> Prompt:
        """The old ids, closed if need be, and the new messages."""
        old, began = list(ids), ""
        if self._thoughts is not None and any(message.role == "user" for message in messages):
            without, _, moved = self._thoughts.cut(old, turns)
            if len(without) < len(old):
                old, began = without, THINKING_DROPPED
                images = _moved(images, moved)
        if old[-1] not in self._closing:
            spoken = ids[turns[-1][0] :] if turns and turns[-1][1] == len(ids) else ()
            old += [self._end] if began else self._closers(spoken)
        new: list[PlacedImage] = []
        delta = self._delta(messages, new)
        if new:
            images = [*images, *(PlacedImage(len(old) + placed.start, placed.image) for placed in new)]
        old += delta
        return Prompt(old, self._in_thought(), began, images)

    def turn_text(self, ids: Sequence[int], stop: int | str | None = None) -> str:
        """Text of a sampled turn."""
        spoken = ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids
        text = self.tokenizer.decode(spoken)
        if isinstance(stop, str) and stop in text:
            text = text[: text.index(stop)]
        return text

    def parse(self, ids: Sequence[int], text: str, *, finish: str, tools: Mapping[str, Json] | None, in_thought: bool | None) -> ParsedTurn:
        """The turn as its text reads."""
        return parse_turn(text, finish=finish, tools=tools, format=self.tool_format, in_thought=in_thought)

    def _delta(self, messages: Sequence[ChatMessage], images: list[PlacedImage]) -> list[int]:
        """Ids that follow the end token of an answer when `messages` come next, and the images in them."""
        if not self._before:  # the same for every delta
            before = self._parts(CONTEXT, (), generate=False)
            self._before = before[: max(place for place, part in enumerate(before) if part.is_token and part.text == self._end_text) + 1]
        after, cut = self._parts((*CONTEXT, *messages), (), generate=True), len(self._before)
        assert after[:cut] == self._before, "a template that is written here renders a message the same whatever follows it"
        return encode_parts(self.tokenizer, after[cut:], images)

    def _named(self, *settings: object) -> str:
        """A fingerprint: of what the template writes, and of settings that no short dialogue shows."""
        tools: list[Json] = [{"type": "function", "function": {"name": "tool"}}]
        parts = self._parts(FINGERPRINTED, tools, generate=True) + self._parts(FINGERPRINTED[1:], (), generate=True)
        spelt = json.dumps([[part.is_token, part.text] for part in parts] + [[self.keeps_thinking, self.tool_format, *settings]])
        return f"{self.family}-" + hashlib.sha256(spelt.encode()).hexdigest()[:16]


def _moved(images: Sequence[PlacedImage], moved: Sequence[tuple[int, int]]) -> list[PlacedImage]:
    """Images where they stand when thoughts before them are gone; those are never cut, since no turn has one.

    Args:
        moved: where each stretch between turns began, before and after; in order.
    """
    found = []
    for placed in images:
        before, after = max(stretch for stretch in moved if stretch[0] <= placed.start)
        found.append(PlacedImage(after + placed.start - before, placed.image))
    return found
