"""ChatML with tools in the system message and thoughts in `<think>`: the Qwen family, and what was trained in its manner.

Closers of a turn that was cut off, all of them context:
  - inside a thought: `</think>` between line ends, and the end token. A thought that is left open would make all that follows part of it
    for a template or a parser that reads the dialogue again, and models have seen thoughts that were closed for them.
  - inside a tool call, and anywhere else: the end token alone. A closing tag would say that the call was whole; the model is told that
    it was cut and did not run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Json
from workers.agent.images import ShownMessage
from workers.agent.renderers.base import Thinking
from workers.agent.renderers.parts import Part, is_control, splitter
from workers.agent.renderers.thoughts import ThoughtCutter, ends_in_thought
from workers.agent.renderers.written import WrittenRenderer
from workers.agent.tool_calls import Format
from workers.llm import chatml
from workers.llm.tokenizer import Tokenizer

END_OF_TEXT = "<|endoftext|>"
OPENINGS: dict[Thinking, str] = {"free": "", "open": f"{chatml.THINK_OPEN}\n", "off": chatml.NO_THINKING}


class ChatMLRenderer(WrittenRenderer):
    """The Qwen family.

    Args:
        tokenizer: must have the family's control tokens; markup such as `<think>` may be ordinary text in it.
        thinking: how a turn begins.
        keep_thinking: whether earlier thoughts stay when a user speaks again. Off, they are cut out of the ids and a new segment
            begins; within a tool loop they always stay. The empty thought of `off` always stays: it is no thought.
        tool_format: how the model writes calls.
        default_system: what the template writes for a dialogue without a system message; empty = nothing.
        images: whether the model sees images; the vocabulary must have Qwen's tokens for them.

    Raises:
        KeyError: the vocabulary lacks a control token.
        ValueError: thoughts cannot be cut in this vocabulary.
    """

    family = "chatml"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        thinking: Thinking = "free",
        keep_thinking: bool = True,
        tool_format: Format = "hermes",
        default_system: str = "",
        images: bool = False,
    ) -> None:
        super().__init__(tokenizer, end=chatml.CLOSE, other_ends=(END_OF_TEXT,), closing=(), keep_thinking=keep_thinking)
        tokenizer.special(chatml.OPEN)
        self.tool_format = tool_format
        self._thinking = thinking
        self._default_system = default_system or None
        self._vision = tuple(map(tokenizer.special, (chatml.VISION_OPEN, chatml.IMAGE_PAD, chatml.VISION_CLOSE))) if images else ()
        self._markup = splitter(name for name in tokenizer.specials if not is_control(name))
        self._after_thought = tokenizer.encode_template(f"\n{chatml.THINK_CLOSE}\n\n")
        if not keep_thinking and thinking != "off":
            self._thoughts = ThoughtCutter(tokenizer, tokenizer.encode_template(OPENINGS[thinking]), self.stop_token_ids)
        self.fingerprint = self._named(*(["images"] if images else []))

    @property
    def template_kwargs(self) -> Json:
        """The switch of Qwen's templates; others ignore it."""
        return {"enable_thinking": self._thinking != "off"}

    def _in_thought(self) -> bool | None:
        return {"free": None, "open": True, "off": False}[self._thinking]

    def _closers(self, turn: Sequence[int]) -> list[int]:
        in_thought = ends_in_thought(self.turn_text(turn), opened=self._thinking == "open")
        return [*(self._after_thought if in_thought else ()), self._end]

    def _parts(self, messages: Sequence[ChatMessage], tools: Sequence[Json], *, generate: bool) -> list[Part]:
        rest = list(messages)
        system = rest.pop(0).content if rest and rest[0].role == "system" else self._default_system
        parts: list[Part] = []
        if tools:
            lead = [Part(f"{system}\n\n")] if system is not None else []
            listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
            inside = [*lead, *self._template(chatml.TOOLS_BEFORE), Part(listed), *self._template(chatml.TOOLS_AFTER)]
            parts += self._block("system", inside)
        elif system is not None:
            parts += self._block("system", [Part(system)])
        for role, run in groupby(rest, key=lambda message: message.role):
            group = list(run)
            if role == "tool":
                parts += [*self._template(f"{chatml.OPEN}user")]
                for message in group:
                    parts += [
                        *self._template(f"\n{chatml.RESPONSE_OPEN}\n"),
                        *self._content(message),
                        *self._template(f"\n{chatml.RESPONSE_CLOSE}"),
                    ]
                parts += self._template(f"{chatml.CLOSE}\n")
            elif role in ("user", "system"):
                for message in group:
                    parts += self._block(role, self._content(message))
            elif role == "assistant":
                for message in group:
                    parts += self._block(role, self._markup(message.content))
            else:
                raise ValueError(f"expected the role system, user, assistant or tool, got {role!r}")
        if generate:
            parts += self._template(f"{chatml.OPEN}assistant\n{OPENINGS[self._thinking]}")
        return parts

    def _content(self, message: ChatMessage) -> list[Part]:
        """What a user or a tool says and shows."""
        if not isinstance(message, ShownMessage):
            return [Part(message.content)]
        parts, at = [], 0
        for place, image in message.images:
            read = image.read
            if not self._vision or (read.around[0], read.token, read.around[1]) != self._vision:
                raise InvalidRequest(
                    f"the model's server writes an image as {read.around[0]}, {read.n_tokens} x {read.token}, {read.around[1]}, and this "
                    f"renderer as {' '.join(map(str, self._vision)) or 'nothing'}: choose another tokenizer or family, or set it to false",
                    field="chat.images",
                )
            frame = (Part(chatml.VISION_OPEN, True), Part(chatml.IMAGE_PAD, True, image), Part(chatml.VISION_CLOSE, True))
            parts += [*([Part(message.content[at:place])] if place > at else []), *frame]
            at = place
        return [*parts, *([Part(message.content[at:])] if at < len(message.content) else [])]

    def _block(self, role: str, inside: Sequence[Part]) -> list[Part]:
        return [*self._template(f"{chatml.OPEN}{role}\n"), *inside, *self._template(f"{chatml.CLOSE}\n")]
