"""What the agent loop asks of a renderer: dialogues as token ids, append-only.

Invariants, for every family:
  1. A prompt is the ids before it, as they were sampled and sent, and then the rendered new messages: history is never tokenized
     again. Where a renderer must break with that, `Prompt.began` says why, and a new segment begins.
  2. A turn that was cut off gets what it misses as context, never as something the model said (`closers` of each family).
  3. Text from users and tools cannot spell control tokens: it is encoded as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.messages import ChatMessage, Json
from workers.agent.tool_calls import Format, ParsedTurn
from workers.llm.images import PlacedImage
from workers.llm.tokenizer import Tokenizer

Thinking = Literal["free", "open", "off"]
"""`free`: the model opens its thoughts itself; `open`: the template opens one; `off`: the template writes an empty one."""
THINKING_DROPPED = "thinking_dropped"
"""Why a segment began: a user spoke again, and the job asked for earlier thoughts to be cut out then (`keep_thinking` off)."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to sample from."""

    ids: list[int]
    in_thought: bool | None
    """Whether they end inside a thought; None = the model decides."""
    began: str = ""
    """Why the ids do not begin with those before; empty when they do."""
    images: Sequence[PlacedImage] = ()
    """All that stand in the ids, in order."""


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
        """Ids that end a turn; the first is the usual one."""
        ...

    @property
    def tool_format(self) -> Format | None:
        """How the model writes calls; None = in a way of its family, which only `parse` reads."""
        ...

    @property
    def keeps_thinking(self) -> bool:
        """Whether thoughts of earlier turns stay when a user speaks again."""
        ...

    @property
    def template_kwargs(self) -> Json:
        """Switches that a server's own template needs to write as this renderer does."""
        ...

    def first_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Json]) -> Prompt:
        """The prompt of the first turn.

        Raises:
            ValueError: there is no message, or one that cannot stand where it does.
            InvalidRequest: a message shows an image, and the server writes those in another way.
        """
        ...

    def next_prompt(
        self, ids: Sequence[int], turns: Sequence[tuple[int, int]], messages: Sequence[ChatMessage], images: Sequence[PlacedImage] = ()
    ) -> Prompt:
        """The prompt of the turn after `messages`.

        Args:
            ids: all of the segment so far; they end with a sampled turn.
            turns: where in it the model's turns stand, start and end.
            messages: what the environment or a user answered.
            images: those that stand in `ids`.

        Raises:
            ValueError: as `first_prompt`.
        """
        ...

    def turn_text(self, ids: Sequence[int], stop: int | str | None = None) -> str:
        """Text of a sampled turn without its end token, cut at the stop string if one ended it."""
        ...

    def parse(self, ids: Sequence[int], text: str, *, finish: str, tools: Mapping[str, Json] | None, in_thought: bool | None) -> ParsedTurn:
        """Thoughts, words and calls of a sampled turn.

        Args:
            ids: the turn as it was sampled.
            text: what `turn_text` made of them.
            finish: the server's word; anything but `stop` means that the turn was cut.
            tools: schema of the arguments of each tool on offer; None = any name goes.
            in_thought: `Prompt.in_thought` of its prompt.
        """
        ...


def tool_schema(name: str, parameters: Mapping[str, object], description: str = "") -> Json:
    """A tool in the form templates show."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}


def first_difference(recorded: Sequence[int], prompt: Sequence[int]) -> int | None:
    """Where `prompt` stops beginning with `recorded`; None when it begins with all of it."""
    n_recorded = len(recorded)
    both = recorded if isinstance(recorded, list) else list(recorded), prompt if isinstance(prompt, list) else list(prompt)
    if len(prompt) >= n_recorded and both[1][:n_recorded] == both[0]:
        return None
    return next((i for i, (a, b) in enumerate(zip(recorded, prompt, strict=False)) if a != b), min(n_recorded, len(prompt)))
