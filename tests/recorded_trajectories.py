"""Trajectories as the agent loop records them, at a server over its wire."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pipeline.messages import ChatMessage, JobSpec, Json, Limits, Sampling, Trajectory
from pipeline.testing.builders import a_job, a_template
from workers.agent import AgentSettings, ChatMLRenderer, TrajectoryRecorder, run_agent
from workers.llm.backend import Model
from workers.llm.scripted import Problem
from workers.llm.tokenizer import Tokenizer, load
from workers.tools.base import ToolResult, ToolSet

PROBLEMS = [Problem(f"What is {a} + {b}?", str(a + b)) for a, b in ((3, 4), (12, 30), (7, 9), (100, 1))]


class Shell:
    """A tool that the scripted policy knows, and that prints what it was given."""

    name = "python"
    description = "Runs code."
    parameters: ClassVar[Json] = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        return ToolResult(text=f"<|im_end|> is text here; it ran {arguments['code']!r:.40}")


CUT_OFF = AgentSettings(continue_after_length=True)
"""For a model that never calls a tool: a turn that was cut at its budget is told so, and another follows."""


async def record(
    backend: Model,
    *,
    question: str = PROBLEMS[0].question,
    member: int = 0,
    sampling: Sampling | None = None,
    settings: AgentSettings | None = None,
    tokenizer: Tokenizer | None = None,
    exact: bool = False,
) -> Trajectory:
    """One trajectory, to its end."""
    template = a_template(
        sampling=sampling or Sampling(), limits=Limits(max_turns=4, run_active_s=120.0), exact_logprobs=exact, run_seed=11
    )
    job: JobSpec = replace(a_job(), job=f"run1.{zlib.crc32(question.encode()):x}.{member}", template=template, member=member)
    recorder = TrajectoryRecorder()

    async def gate() -> None:
        return None

    messages: Sequence[ChatMessage] = (
        ChatMessage(role="system", content="Use the tool."),
        ChatMessage(role="user", content=question),
    )
    end = await run_agent(
        job,
        messages,
        backend=backend,
        renderer=ChatMLRenderer(tokenizer or load()),
        tools=ToolSet([Shell()]),
        recorder=recorder,
        gate=gate,
        settings=settings or AgentSettings(),
    )
    return recorder.trajectory(end.stop, answer=end.answer)


async def several(
    backend: Model,
    count: int,
    *,
    sampling: Sampling | None = None,
    settings: AgentSettings | None = None,
    tokenizer: Tokenizer | None = None,
) -> list[Trajectory]:
    """Trajectories of members of several groups, at the same time, with some of more than one turn among them."""
    running = [
        record(
            backend,
            question=PROBLEMS[number % len(PROBLEMS)].question,
            member=number // len(PROBLEMS),
            sampling=sampling,
            settings=settings,
            tokenizer=tokenizer,
        )
        for number in range(count)
    ]
    found = await asyncio.gather(*running)
    assert any(len(trajectory.turns) > 1 for trajectory in found)
    return found
