"""Dialogues as token ids, append-only.

Invariants:
  1. A prompt is the ids before it, as they were sampled and sent, and then the rendered new messages: history is never tokenized
     again. Where a renderer must break with that, it says why, and a new segment begins.
  2. A turn that was cut off gets its missing end token as context, never as something the model said.
  3. Text from users and tools cannot spell control tokens: it is encoded as text.

What is appended is taken from a synthetic context: a short dialogue is rendered with and without the new messages, and the difference
after the end token of its last answer is the delta. Encoding the new messages alone would miss what a template puts between messages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol

from pipeline.messages import ChatMessage, Json
from workers.agent.tool_calls import Format
from workers.llm import chatml
from workers.llm.tokenizer import Tokenizer

Thinking = Literal["free", "open", "off"]
"""`free`: the model opens its thoughts itself; `open`: the template opens one; `off`: the template writes an empty one."""
THINKING_DROPPED = "thinking_dropped"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to sample from."""

    ids: list[int]
    in_thought: bool | None
    """Whether they end inside a thought; None = the model decides."""
    began: str = ""
    """Why the ids do not begin with those before; empty when they do."""


class Renderer(Protocol):
    """One model family's way to write dialogues."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Vocabulary of the model."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the template and its settings."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    @property
    def tool_format(self) -> Format:
        """How the model writes calls."""
        ...

    def first_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Json]) -> Prompt:
        """The prompt of the first turn."""
        ...

    def next_prompt(self, ids: Sequence[int], turns: Sequence[tuple[int, int]], messages: Sequence[ChatMessage]) -> Prompt:
        """The prompt of the turn after `messages`.

        Args:
            ids: all of the segment so far; they end with a sampled turn.
            turns: where in it the model's turns stand, start and end.
            messages: what the environment or a user answered.
        """
        ...

    def turn_text(self, ids: Sequence[int], stop: int | str | None = None) -> str:
        """Text of a sampled turn without its end token, cut at the stop string if one ended it."""
        ...


class ChatMLRenderer:
    """ChatML with tools in the system message and thoughts in `<think>`: the Qwen family.

    Args:
        tokenizer: must have the family's control tokens; markup such as `<think>` may be ordinary text in it.
        thinking: how a turn begins.
        keep_thinking: whether earlier thoughts stay when a user speaks again. Off, they are cut out of the ids and a new segment
            begins; within a tool loop they always stay.
    """

    tool_format: Format

    def __init__(
        self, tokenizer: Tokenizer, *, thinking: Thinking = "free", keep_thinking: bool = True, tool_format: Format = "hermes"
    ) -> None:
        self.tokenizer = tokenizer
        self.tool_format = tool_format
        self._thinking = thinking
        self._keep_thinking = keep_thinking
        self._close = tokenizer.special(chatml.CLOSE)
        end_of_text = tokenizer.specials.get("<|endoftext|>")
        self.stop_token_ids = (self._close,) if end_of_text is None else (self._close, end_of_text)
        self._markup = _splitter(tokenizer, control=False)
        self._template = _splitter(tokenizer, control=True)
        self.fingerprint = self._fingerprint()

    def first_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Json]) -> Prompt:
        """The prompt of the first turn.

        Raises:
            ValueError: there is no message, or one has a role that cannot stand there.
        """
        if not messages:
            raise ValueError("expected at least one message")
        return self._prompt(self._encode(self._parts(messages, tools, generate=True)))

    def next_prompt(self, ids: Sequence[int], turns: Sequence[tuple[int, int]], messages: Sequence[ChatMessage]) -> Prompt:
        """The old ids, closed if need be, and the new messages."""
        old, began = list(ids), ""
        if not self._keep_thinking and any(message.role == "user" for message in messages):
            without = self._without_thoughts(old, turns)
            if len(without) < len(old):
                old, began = without, THINKING_DROPPED
        if old[-1] != self._close:
            old.append(self._close)
        return self._prompt(old + self._delta(messages), began)

    def turn_text(self, ids: Sequence[int], stop: int | str | None = None) -> str:
        """Text of a sampled turn."""
        spoken = ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids
        text = self.tokenizer.decode(spoken)
        if isinstance(stop, str) and stop in text:
            text = text[: text.index(stop)]
        return text

    # ---- ids

    def _prompt(self, ids: list[int], began: str = "") -> Prompt:
        return Prompt(ids, {"free": None, "open": True, "off": False}[self._thinking], began)

    def _delta(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids that follow the end token of an answer when `messages` come next."""
        context = (ChatMessage(role="user", content="."), ChatMessage(role="assistant", content="."))
        before = self._encode(self._parts(context, (), generate=False))
        after = self._encode(self._parts((*context, *messages), (), generate=True))
        cut = len(before) - before[::-1].index(self._close)
        assert after[:cut] == before[:cut], "this template renders a message the same whatever follows it"
        return after[cut:]

    def _without_thoughts(self, ids: list[int], turns: Sequence[tuple[int, int]]) -> list[int]:
        """The ids with each turn's thought cut out, and the line ends that follow it."""
        closing = self.tokenizer.specials.get(chatml.THINK_CLOSE)
        kept: list[int] = []
        place = 0
        for start, end in turns:
            kept += ids[place:start]
            turn = ids[start:end]
            if closing in turn:
                turn = turn[len(turn) - turn[::-1].index(closing) :]
                while turn and not self.tokenizer.decode(turn[:1]).strip("\n"):
                    turn = turn[1:]
            kept += turn
            place = end
        return kept + ids[place:]

    def _encode(self, parts: Iterable[_Part]) -> list[int]:
        """Ids of a rendering. Neighbouring texts are encoded as one: merges cross message borders, not control tokens."""
        ids: list[int] = []
        for is_token, group in groupby(parts, key=lambda part: part.is_token):
            texts = [part.text for part in group]
            if is_token:
                ids += [self.tokenizer.special(text) for text in texts]
            else:
                ids += self.tokenizer.encode("".join(texts))
        return ids

    # ---- the template

    def _parts(self, messages: Sequence[ChatMessage], tools: Sequence[Json], *, generate: bool) -> list[_Part]:
        rest = list(messages)
        system = rest.pop(0).content if rest and rest[0].role == "system" else None
        parts: list[_Part] = []
        if tools:
            lead = [_Part(f"{system}\n\n")] if system is not None else []
            listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
            inside = [*lead, *self._template(chatml.TOOLS_BEFORE), _Part(listed), *self._template(chatml.TOOLS_AFTER)]
            parts += self._block("system", inside)
        elif system is not None:
            parts += self._block("system", [_Part(system)])
        for role, run in groupby(rest, key=lambda message: message.role):
            group = list(run)
            if role == "tool":
                parts += [*self._template(f"{chatml.OPEN}user")]
                for message in group:
                    parts += [
                        *self._template(f"\n{chatml.RESPONSE_OPEN}\n"),
                        _Part(message.content),
                        *self._template(f"\n{chatml.RESPONSE_CLOSE}"),
                    ]
                parts += self._template(f"{chatml.CLOSE}\n")
            elif role in ("user", "system"):
                for message in group:
                    parts += self._block(role, [_Part(message.content)])
            elif role == "assistant":
                for message in group:
                    parts += self._block(role, self._markup(message.content))
            else:
                raise ValueError(f"expected the role system, user, assistant or tool, got {role!r}")
        if generate:
            opening = {"free": "", "open": f"{chatml.THINK_OPEN}\n", "off": chatml.NO_THINKING}[self._thinking]
            parts += self._template(f"{chatml.OPEN}assistant\n{opening}")
        return parts

    def _block(self, role: str, inside: list[_Part]) -> list[_Part]:
        return [*self._template(f"{chatml.OPEN}{role}\n"), *inside, *self._template(f"{chatml.CLOSE}\n")]

    def _fingerprint(self) -> str:
        dialogue = [ChatMessage(role=role, content=role) for role in ("system", "user", "assistant", "tool", "user")]
        tools: list[Json] = [{"type": "function", "function": {"name": "tool"}}]
        parts = self._parts(dialogue, tools, generate=True)
        spelt = json.dumps([[part.is_token, part.text] for part in parts] + [[self._keep_thinking, self.tool_format]])
        return "chatml-" + hashlib.sha256(spelt.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of a rendering: text, or the text of one control token."""

    text: str
    is_token: bool = False


def _splitter(tokenizer: Tokenizer, *, control: bool) -> Callable[[str], list[_Part]]:
    """A function that takes trusted text apart into texts and tokens.

    Args:
        control: whether control tokens count, or only markup such as `<tool_call>`: what a model wrote may hold markup, and never a
            control token.
    """
    names = frozenset(name for name in tokenizer.specials if control or not name.startswith("<|"))
    longest_first = sorted(names, key=len, reverse=True)
    pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if names else "(?!)")

    def split(text: str) -> list[_Part]:
        return [_Part(piece, piece in names) for piece in pattern.split(text) if piece]

    return split


def first_difference(recorded: Sequence[int], prompt: Sequence[int]) -> int | None:
    """Where `prompt` stops beginning with `recorded`; None when it begins with all of it."""
    n_recorded = len(recorded)
    if len(prompt) >= n_recorded and list(prompt[:n_recorded]) == list(recorded):
        return None
    return next((i for i, (a, b) in enumerate(zip(recorded, prompt, strict=False)) if a != b), min(n_recorded, len(prompt)))


def tool_schema(name: str, parameters: Mapping[str, object], description: str = "") -> Json:
    """A tool in the form templates show."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}
