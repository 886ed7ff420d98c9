"""Dialogues for cases: a scripted server says given ids over its wire, and what comes back is recorded as every trajectory is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from pipeline import codec
from pipeline.messages import ChatMessage, Json, Limits, Sampling, StopReason, Trajectory, Turn
from pipeline.testing import a_job, a_template
from tests.cases.areas.vocabularies import vocabulary
from workers.agent import AgentEnd, AgentSettings, ChatMLRenderer, Prompt, RetryPolicy, TrajectoryRecorder, broken_promises, run_agent
from workers.llm import GenRequest, HttpBackend, connect_backend
from workers.llm.scripted import DictatedModel, Dictation, ScriptedServer, ServerOptions
from workers.tools.base import Tool, ToolSet

ASKED = (ChatMessage(role="user", content="."),)


class Desk:
    """Servers by vocabulary, opened when a case first needs one."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._backends: dict[tuple[str, int], HttpBackend] = {}

    async def model(self, tokenizer: str, *, max_model_len: int = 32_768) -> DictatedModel:
        """A model of that vocabulary, which says what it is told."""
        key = (tokenizer, max_model_len)
        if key not in self._backends:
            options = ServerOptions(max_model_len=max_model_len)
            server = await self._stack.enter_async_context(ScriptedServer(options, tokenizer=vocabulary(tokenizer)))
            self._backends[key] = await self._stack.enter_async_context(connect_backend(server.url))
        return DictatedModel(self._backends[key])


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    async with AsyncExitStack() as stack:
        yield Desk(stack)


class GivenPrompt(ChatMLRenderer):
    """A renderer whose first prompt is given as ids."""

    prompt_ids: tuple[int, ...] = ()

    def first_prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Json]) -> Prompt:
        prompt = super().first_prompt(messages, tools)
        return replace(prompt, ids=[*self.prompt_ids]) if self.prompt_ids else prompt


class InvalidRecord(Exception):
    """The product recorded a trajectory that breaks a promise."""


def recorded(recorder: TrajectoryRecorder, stop: StopReason = StopReason.FINISHED) -> Trajectory:
    """The trajectory as a trainer reads it: checked, packed and unpacked."""
    trajectory = recorder.trajectory(stop)
    broken = broken_promises(trajectory)
    if broken:
        raise InvalidRecord("; ".join(broken))
    return codec.decode(Trajectory, codec.encode(trajectory))


async def act(
    model: DictatedModel,
    renderer: ChatMLRenderer,
    *,
    max_tokens: int = 4096,
    max_turns: int = 8,
    stop: Sequence[str] = (),
    tools: Sequence[Tool] = (),
    continue_after_length: bool = False,
) -> tuple[AgentEnd, TrajectoryRecorder]:
    """The agent loop, to its end. What it raises is raised: no answer is asked for twice."""
    limits = Limits(max_turns=max_turns, run_active_s=60.0, max_context_tokens=1_000_000, max_sampled_tokens=1_000_000)
    template = a_template(limits=limits, sampling=Sampling(max_tokens=max_tokens))
    recorder = TrajectoryRecorder()

    async def open_gate() -> None:
        return None

    end = await run_agent(
        replace(a_job(), template=template),
        ASKED,
        backend=model,
        renderer=renderer,
        tools=ToolSet(tools),
        recorder=recorder,
        gate=open_gate,
        settings=AgentSettings(stop=tuple(stop), continue_after_length=continue_after_length, retry=RetryPolicy(tries=1)),
    )
    return end, recorder


async def say(model: DictatedModel, renderer: ChatMLRenderer, recorder: TrajectoryRecorder, ids: Sequence[int], finish: str) -> None:
    """One turn, sampled and recorded: `length` cuts it where its ids end."""
    number = len(recorder.turns)
    ends = bool(ids) and ids[-1] in renderer.stop_token_ids
    model.dictate(Dictation(ids))
    caps = await model.probe()
    request = GenRequest(
        request_id=f"case.{number}",
        prompt_ids=[*recorder.ids],
        sampling=Sampling(),
        max_tokens=len(ids) if finish == "length" or ends else len(ids) + 1,
        seed=0,
        stop_token_ids=renderer.stop_token_ids,
    )
    result = await model.generate(request, timeout_s=30.0)
    recorder.add_call(result, _turn(number, request, result.finish, caps.logprobs_mode, renderer))


def _turn(number: int, request: GenRequest, finish: str, mode: str, renderer: ChatMLRenderer) -> Turn:
    return Turn(
        index=number,
        segment=0,
        start=0,
        end=0,
        finish=finish,
        sampling=request.sampling,
        seed=request.seed,
        server="case",
        request_id=request.request_id,
        cached_tokens=-1,
        logprobs_mode=mode,
        template=renderer.fingerprint,
        tokenizer=renderer.tokenizer.fingerprint,
        model_s=0.0,
    )
