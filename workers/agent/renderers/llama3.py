"""Llama 3.1 and later: headers, `<|eot_id|>`, tools as JSON in the first user message or in the system message, answers as `ipython`.

The closer of a turn that was cut off is `<|eot_id|>`, context; `<|eom_id|>` (a turn that waits for its tool) needs none behind it.
The template writes today's date into the system message. A prompt must not change at midnight, so the date is a setting, and the server's
template is given the same one when the two are compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.messages import ChatMessage, Json
from workers.agent.renderers.parts import Part, splitter
from workers.agent.renderers.written import WrittenRenderer
from workers.agent.tool_calls import Format
from workers.llm import llama3
from workers.llm.tokenizer import Tokenizer


class Llama3Renderer(WrittenRenderer):
    """The Llama 3 family. It has no thoughts.

    Args:
        tokenizer: must have the family's control tokens.
        tool_format: how the model writes calls.
        date_string: the date that the system message names.
        tools_in_user_message: where tools stand; else in the system message.

    Raises:
        KeyError: the vocabulary lacks a control token.
    """

    family = "llama3"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tool_format: Format = "llama3_json",
        date_string: str = llama3.DATE,
        tools_in_user_message: bool = True,
    ) -> None:
        ends = (llama3.END_OF_MESSAGE, llama3.END_OF_TEXT)
        super().__init__(tokenizer, end=llama3.END_OF_TURN, other_ends=ends, closing=ends[:1], keep_thinking=True)
        for name in (llama3.BEGIN, llama3.HEADER_OPEN, llama3.HEADER_CLOSE):
            tokenizer.special(name)
        self.tool_format = tool_format
        self._date = date_string
        self._tools_in_user = tools_in_user_message
        self._markup = splitter({llama3.PYTHON} & tokenizer.specials.keys())
        self.fingerprint = self._named()

    @property
    def template_kwargs(self) -> Json:
        """The switches of Meta's template."""
        return {"date_string": self._date, "tools_in_user_message": self._tools_in_user}

    def _in_thought(self) -> bool | None:
        return False

    def _parts(self, messages: Sequence[ChatMessage], tools: Sequence[Json], *, generate: bool) -> list[Part]:
        rest = list(messages)
        system = rest.pop(0).content.strip() if rest and rest[0].role == "system" else ""
        listed = "".join(json.dumps(tool, ensure_ascii=False, indent=4) + "\n\n" for tool in tools)
        lead = (llama3.ENVIRONMENT if tools else "") + llama3.DATES.format(date=self._date)
        if tools and not self._tools_in_user:
            lead += llama3.TOOLS_IN_SYSTEM + listed
        parts = [*self._template(llama3.BEGIN), *self._block("system", [Part(lead + system)])]
        if tools and self._tools_in_user:
            if not rest or rest[0].role != "user":
                raise ValueError("expected a user message first: tools stand in it; else set tools_in_user_message to false")
            parts += self._block("user", [Part(llama3.TOOLS_IN_USER + listed + rest.pop(0).content.strip())])
        for message in rest:
            if message.role == "tool":
                parts += self._block("ipython", [Part(json.dumps(message.content, ensure_ascii=False))])
            elif message.role in ("user", "system"):
                parts += self._block(message.role, [Part(message.content.strip())])
            elif message.role == "assistant":
                parts += self._block(message.role, self._markup(message.content.strip()))
            else:
                raise ValueError(f"expected the role system, user, assistant or tool, got {message.role!r}")
        if generate:
            parts += self._header("assistant")
        return parts

    def _header(self, role: str) -> list[Part]:
        return self._template(f"{llama3.HEADER_OPEN}{role}{llama3.HEADER_CLOSE}\n\n")

    def _block(self, role: str, inside: Sequence[Part]) -> list[Part]:
        return [*self._header(role), *inside, *self._template(llama3.END_OF_TURN)]
