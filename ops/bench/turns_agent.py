"""The agent loop on its own: turns of a given size in a context of a given length, against a model server in another process.

Every turn samples `SAMPLED` tokens, a thought and a call among them, and a tool answers with some `ANSWERED`. A turn is: the request is
built, sent, its answer parsed, checked and recorded, the call read, the tool's answer rendered and appended, the turn's delta packed for
the journal. The first prompt is rendered beforehand; the tool does nothing; Redis is not asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pipeline import codec
from pipeline.messages import ChatMessage, JobSpec, JobTemplate, Json, Limits, Sampling
from pipeline.messages import Prompt as TaskPrompt
from workers.agent import ChatMLRenderer, Prompt, TrajectoryRecorder, TurnDelta, run_agent
from workers.llm.backend import Caps, GenRequest, GenResult, Model
from workers.llm.tokenizer import Tokenizer
from workers.tools.base import ToolResult, ToolSet

SAMPLED = 128
"""Tokens of a turn."""
ANSWERED = 64
"""Tokens of a tool's answer, nearly."""
SENTENCE = " The sum of both numbers is what we look for, so we add them and check the result."
TOOL = "python"


class BenchTool:
    """Answers at once."""

    name = TOOL
    description = "Runs Python."
    parameters: ClassVar[Json] = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}

    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        return ToolResult(text=f"{arguments['code']}: {self._answer}")


class PreparedRenderer(ChatMLRenderer):
    """Renders a first prompt once, however many dialogues begin with it."""

    _first: Prompt | None = None

    def first_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Json]) -> Prompt:
        """The prompt that was rendered first."""
        self._first = self._first or super().first_prompt(messages, tools)
        return self._first


class TellingModel:
    """A model whose turns are given: turn k says the k-th of them."""

    def __init__(self, backend: Model, turns: list[list[int]]) -> None:
        self._backend = backend
        self._turns = turns
        self._said = 0

    async def probe(self) -> Caps:
        """As the backend."""
        return await self._backend.probe()

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """The next turn, said by the server."""
        self._said += 1
        return await self._backend.generate(replace(request, extra_args={"script": self._turns[self._said - 1]}), timeout_s=timeout_s)

    async def abort(self, request_id: str) -> None:
        """As the backend."""
        await self._backend.abort(request_id)


class BenchDialogue:
    """One dialogue, the same for whoever holds it.

    Args:
        context: tokens in the middle of the dialogue.
        turns: model calls.
    """

    def __init__(self, tokenizer: Tokenizer, *, context: int, turns: int) -> None:
        self.tokenizer = tokenizer
        self.renderer = ChatMLRenderer(tokenizer)
        self.tools = ToolSet([BenchTool(_text_of(tokenizer, ANSWERED))])
        self.n_turns = turns
        self.turns = [_turn(tokenizer, number) for number in range(turns)]
        grows = SAMPLED + ANSWERED + 32  # the template's own
        bare = len(self._first_prompt(""))
        self.messages = [ChatMessage(role="user", content=_text_of(tokenizer, max(1, context - grows * turns // 2 - bare)))]
        self._prepared = PreparedRenderer(tokenizer)
        self._prepared.first_prompt(self.messages, self.tools.schemas())

    async def hold(self, backend: Model) -> TrajectoryRecorder:
        """The whole dialogue; its record."""
        recorder = TrajectoryRecorder()

        async def gate() -> None:
            return None

        async def journal(delta: TurnDelta) -> None:
            codec.encode(delta)

        limits = Limits(max_turns=self.n_turns, max_sampled_tokens=10**9, max_context_tokens=10**9)
        template = JobTemplate(task="bench", limits=limits, sampling=Sampling(max_tokens=2 * SAMPLED))
        job = JobSpec(
            job="bench.e0-i0.0.0",
            run="bench",
            group="bench.e0-i0.0",
            member=0,
            draw=0,
            attempt=1,
            template=template,
            prompt=TaskPrompt(id="e0-i0", data={}),
        )
        await run_agent(
            job,
            self.messages,
            backend=TellingModel(backend, self.turns),
            renderer=self._prepared,
            tools=self.tools,
            recorder=recorder,
            gate=gate,
            journal=journal,
        )
        return recorder

    def _first_prompt(self, text: str) -> list[int]:
        return self.renderer.first_prompt([ChatMessage(role="user", content=text)], self.tools.schemas()).ids


def _text_of(tokenizer: Tokenizer, tokens: int) -> str:
    """A text of about so many tokens."""
    return tokenizer.decode((tokenizer.encode(SENTENCE) * (tokens // len(tokenizer.encode(SENTENCE)) + 1))[:tokens])


def _turn(tokenizer: Tokenizer, number: int) -> list[int]:
    """A thought and a call, `SAMPLED` tokens with the end token; no two turns are equal, or the loop would find itself stuck."""
    call = json.dumps({"name": TOOL, "arguments": {"code": f"print({number} + 1)"}})
    end = [*tokenizer.encode_template(f"\n</think>\n\n<tool_call>\n{call}\n</tool_call>"), tokenizer.special("<|im_end|>")]
    thought = tokenizer.encode_template("<think>\n" + _text_of(tokenizer, SAMPLED))
    return thought[: SAMPLED - len(end)] + end
