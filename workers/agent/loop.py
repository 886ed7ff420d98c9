"""The agent loop: model call, tool calls or a move in a world, the answers, again, until something ends it.

Invariants:
  1. Every model call, every tool call and every move passes the gate first; the gate raises when the job was cancelled or its lease is
     lost, and then nothing new starts.
  2. What was recorded stays recorded: the caller owns the recorder, so a partial trajectory survives any error here.
  3. A finished turn is journalled before the next call begins.
  4. Nothing here turns a failure into a reward or a stop reason: what breaks underneath is raised. Stop reasons come from the closed
     list, for what the model did.

An answer that ended in `abort` (an engine that updates its weights, say) is kept, and the same turn goes on from it with another
seed and the rest of its budget. A turn whose last token is an end token is over, whatever the server calls it: SGLang looks for aborts
and used up budgets before it looks for end tokens, and what is sampled behind the end of a turn is no part of any dialogue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pipeline.blobs import BadImage
from pipeline.engines.errors import InvalidResponse, ModelError, Overlong, Retryable
from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, JobSpec, Sampling, StopReason, Turn
from workers.agent.call_formats import CallError, ToolCall
from workers.agent.images import ImageMessage, ImageReader, ShownMessage, told
from workers.agent.limits import ActiveTime, Budget, StuckDetector, plan_call
from workers.agent.observations import cut_observation
from workers.agent.renderers import Prompt, Renderer
from workers.agent.seeds import call_seed
from workers.agent.tool_calls import ParsedTurn
from workers.agent.trajectory import TrajectoryRecorder, TurnDelta
from workers.agent.world import World, WorldOverran, WorldReply
from workers.llm.backend import Caps, GenRequest, GenResult, LogprobsMode, Model
from workers.llm.images import PlacedImage, PromptImage, SeenImage
from workers.llm.ratio import ratio_bias
from workers.tools.base import ToolOverran, ToolResult, ToolSet, ToolUse

MAX_CALLS_A_TURN = 16
"""Tool calls and faults of one turn that are answered; a turn that writes more is told how many were left."""
MAX_EMPTY_PARTS = 32
"""Aborts in a row that brought no token; a server that aborts more often than that is broken. One that brings tokens is bounded by the
turn's budget alone: weights may be updated as often as they like while a long turn goes on."""
ABORT_GRACE_S = 2.0
"""How long a call that ran out of time may take to hand over what it has."""

Gate = Callable[[], Awaitable[None]]
"""Raises when nothing new may start."""
Journal = Callable[[TurnDelta], Awaitable[None]]
ToolWatch = Callable[[ToolCall], Awaitable[None]]
"""Told of each tool call right before it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How the loop meets a server that does not answer as it should. A pool that can choose another server comes before it."""

    tries: int = 3
    """Per call, for failures; waiting for a busy or paused server is not one."""
    delay_s: float = 0.5
    """Before the second try; doubled for each further one."""
    max_delay_s: float = 10.0
    max_wait_s: float = 900.0
    """For a busy or paused server, per call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What a handler decides for its trajectories."""

    stop: tuple[str, ...] = ()
    """Stop strings; the record keeps the tokens, the text is cut."""
    continue_after_length: bool = False
    """Whether a turn that was cut at its own budget is told so and followed by another; else the trajectory ends there."""
    cut_off_text: str = "Your last message was cut off at its limit. Go on, and be brief."
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    call_timeout_s: float = 1800.0
    """Of one model call, waiting for a place in the server's line included."""
    tool_grace_s: float = 30.0
    """What a tool has beyond its timeout to say that it hit it; after that it is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """How the turns ended."""

    stop: StopReason
    answer: str
    """The text that is graded."""


async def run_agent(
    job: JobSpec,
    messages: Sequence[ChatMessage],
    *,
    backend: Model,
    renderer: Renderer,
    tools: ToolSet,
    recorder: TrajectoryRecorder,
    gate: Gate,
    journal: Journal | None = None,
    before_tool: ToolWatch | None = None,
    world: World | None = None,
    active: ActiveTime | None = None,
    settings: AgentSettings | None = None,
    images: ImageReader | None = None,
    used_tool: Callable[[ToolUse], None] | None = None,
) -> AgentEnd:
    """Run one trajectory to its end.

    Args:
        job: limits, sampling and the parts of every seed and request id.
        messages: how the dialogue begins.
        backend: a server, or a pool that looks like one.
        recorder: empty; holds the trajectory afterwards, whatever happened.
        gate: passed before every model and tool call.
        journal: told each finished turn.
        before_tool: told each tool call before it begins.
        world: answers the turns that call no tool; None = such a turn ends the trajectory.
        active: the clock of the job's active time; a wrapper that waits for a server stops it meanwhile.
        images: reads those that messages and tools show; None = the model sees none, and no message has one.
        used_tool: told of each tool call that has ended.

    Raises:
        InvalidRequest: this sampling at this server, or at the one that a call went to later, would bias the trainer's ratio.
        ModelError: the server gave no answer to be believed, tries exhausted.
        Exception: whatever the gate, a tool, the world or the journal raised.
    """
    settings = settings or AgentSettings()
    caps = await backend.probe()
    _refuse_bias(caps.logprobs_mode, job)
    loop = _AgentLoop(
        job=job,
        backend=backend,
        caps=caps,
        renderer=renderer,
        tools=tools,
        recorder=recorder,
        gate=gate,
        journal=journal,
        before_tool=before_tool,
        world=world,
        active=active or ActiveTime(job.template.limits.run_active_s),
        settings=settings,
        images=images,
        used_tool=used_tool,
    )
    return await loop.run(messages)


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A turn the model finished, or could not."""

    parsed: ParsedTurn
    text: str
    was_cut: bool
    """Whether it ended before the model had ended it."""
    ended: StopReason | None
    """Why nothing may follow; None = the turn ended as it should."""


@dataclass(slots=True, kw_only=True)
class _AgentLoop:
    job: JobSpec
    backend: Model
    caps: Caps
    renderer: Renderer
    tools: ToolSet
    recorder: TrajectoryRecorder
    gate: Gate
    journal: Journal | None
    before_tool: ToolWatch | None
    world: World | None
    active: ActiveTime
    settings: AgentSettings
    images: ImageReader | None
    used_tool: Callable[[ToolUse], None] | None
    stuck: StuckDetector = field(default_factory=StuckDetector)
    turns: int = 0

    async def run(self, messages: Sequence[ChatMessage]) -> AgentEnd:
        shown = [await self._shown(message) for message in messages]
        for message in shown:
            self.recorder.add_message(message.role, told(message))
        prompt = self.renderer.first_prompt(shown, self.tools.schemas())
        self.recorder.add_prompt(prompt.ids, images=prompt.images)
        answer = ""
        while True:
            spoken = await self._speak(prompt)
            if isinstance(spoken, StopReason):
                return AgentEnd(stop=spoken, answer=answer)
            answer = spoken.parsed.content
            self.recorder.add_message("assistant", spoken.text)
            if spoken.ended is not None:
                return await self._end(spoken.ended, answer)
            if spoken.parsed.items:
                replies, end = await self._use_tools(spoken.parsed)
            elif spoken.was_cut:
                replies, end = [ChatMessage(role="user", content=self.settings.cut_off_text)], None
            elif self.world is not None:
                replies, end = await self._move(self.world, answer)
            else:
                return await self._end(StopReason.FINISHED, answer)
            self.turns += 1
            for reply in replies:
                self.recorder.add_message(reply.role, told(reply))
            if end is None and self.stuck.is_stuck_after(_signature(spoken.parsed, replies)):
                end = AgentEnd(stop=StopReason.STUCK, answer=answer)
            if end is None and self.active.left_s <= 0:
                end = AgentEnd(stop=StopReason.TIME, answer=answer)
            if end is not None:
                return await self._end(end.stop, end.answer)
            prompt = self.renderer.next_prompt(self.recorder.ids, self.recorder.turn_places, replies, prompt.images)
            if len(prompt.ids) > self._longest_context():  # nothing can be sampled from it: a record longer than its limit serves nobody
                plan = self._plan(0, prompt_tokens=len(prompt.ids))
                assert isinstance(plan, StopReason), "a prompt above the limit has no budget"
                return await self._end(plan, answer)
            self.recorder.add_prompt(prompt.ids, prompt.began, prompt.images)
            await self._write_journal()

    async def _end(self, stop: StopReason, answer: str) -> AgentEnd:
        await self._write_journal()
        return AgentEnd(stop=stop, answer=answer)

    async def _write_journal(self) -> None:
        if self.journal is not None:
            await self.journal(self.recorder.take_delta())

    # ---- the model's turn

    async def _speak(self, prompt: Prompt) -> _Spoken | StopReason:
        """One turn of the model, of as many calls as it takes."""
        said: list[int] = []
        part = empty_parts = 0
        while True:
            plan = self._plan(len(said))
            if isinstance(plan, StopReason):
                return self._spoken(said, prompt, None, plan) if said else plan
            if self.active.left_s <= 0:
                return self._spoken(said, prompt, None, StopReason.TIME) if said else StopReason.TIME
            request = self._request(plan, prompt.ids if not said else [*self.recorder.ids], part, prompt.images)
            try:
                result, out_of_time = await self._call(request)
            except Overlong:  # the server at hand has less room than the one that was asked first
                return self._spoken(said, prompt, None, StopReason.CONTEXT) if said else StopReason.CONTEXT
            if result is None:
                return self._spoken(said, prompt, None, StopReason.TIME) if said else StopReason.TIME
            _refuse_bias(result.logprobs_mode, self.job)  # another server may have answered than was probed
            said += result.output_ids
            if result.output_ids:
                self.recorder.add_call(result, self._turn_record(request, result))
            if out_of_time:
                return self._spoken(said, prompt, result, StopReason.TIME)
            if self._is_over(said):
                return self._spoken(said, prompt, result, None)
            if result.finish == "abort":
                part += 1
                empty_parts = 0 if result.output_ids else empty_parts + 1
                if empty_parts == MAX_EMPTY_PARTS:
                    raise Retryable("aborted", result.server, f"one turn was aborted {empty_parts} times before it had a token")
                if not result.output_ids:
                    await self._pause(self.settings.retry.delay_s)
                continue
            ended = None
            if result.finish == "length":
                total_used = self._plan(len(said), next_turn=True)
                if not self.settings.continue_after_length or isinstance(total_used, StopReason):
                    ended = plan.when_used
            return self._spoken(said, prompt, result, ended)

    def _longest_context(self) -> int:
        return min(self.job.template.limits.max_context_tokens, self.caps.max_model_len)

    def _plan(self, sampled_in_turn: int, *, next_turn: bool = False, prompt_tokens: int | None = None) -> Budget | StopReason:
        return plan_call(
            self.job.template.limits,
            self.job.template.sampling,
            turns=self.turns,
            prompt_tokens=len(self.recorder.ids) if prompt_tokens is None else prompt_tokens,
            sampled_tokens=self.recorder.sampled_tokens,
            sampled_in_turn=0 if next_turn else sampled_in_turn,
            max_model_len=self.caps.max_model_len,
        )

    def _request(self, plan: Budget, prompt_ids: list[int], part: int, images: Sequence[PlacedImage]) -> GenRequest:
        job = self.job
        return GenRequest(
            request_id=f"{job.job}.{job.attempt}.{self.turns}.{part}",
            prompt_ids=prompt_ids,
            sampling=job.template.sampling,
            max_tokens=plan.max_tokens,
            seed=call_seed(job, self.turns, part),
            stop_token_ids=self.renderer.stop_token_ids,
            stop=self.settings.stop,
            priority=job.template.priority,
            session_id=job.job,
            experts=job.template.routed_experts,
            experts_from=self.recorder.expert_rows,
            images=images,
        )

    def _spoken(self, said: list[int], prompt: Prompt, result: GenResult | None, ended: StopReason | None) -> _Spoken:
        text = self.renderer.turn_text(said, result.stop_reason if result is not None else None)
        was_cut = not self._is_over(said) and (result is None or result.finish != "stop")
        finish = "length" if was_cut else "stop"
        parsed = self.renderer.parse(said, text, finish=finish, tools=self.tools.parameters(), in_thought=prompt.in_thought)
        return _Spoken(parsed, text, was_cut, ended)

    def _is_over(self, said: Sequence[int]) -> bool:
        """Whether the model ended its turn."""
        return bool(said) and said[-1] in self.renderer.stop_token_ids

    def _turn_record(self, request: GenRequest, result: GenResult) -> Turn:
        return Turn(
            index=len(self.recorder.turns),
            segment=0,
            start=0,
            end=0,
            finish=result.finish,
            sampling=_with_budget(request.sampling, request.max_tokens),
            seed=request.seed,
            server=result.server,
            request_id=result.server_request_id,
            cached_tokens=-1 if result.cached_tokens is None else result.cached_tokens,
            logprobs_mode=result.logprobs_mode,
            template=self.renderer.fingerprint,
            tokenizer=self.renderer.tokenizer.fingerprint,
            model_s=result.seconds,
        )

    async def _call(self, request: GenRequest) -> tuple[GenResult | None, bool]:
        """One believed answer, and whether the active time ran out over it; None when it then had none to give."""
        policy = self.settings.retry
        tries, failures, waited_s = 0, 0, 0.0
        while True:
            await self._pass_gate()
            name = request.request_id if not tries else f"{request.request_id}.again{tries}"
            tries += 1
            try:
                return await self._call_within_time(request if name == request.request_id else replace(request, request_id=name))
            except (Retryable, InvalidResponse) as error:
                waits = isinstance(error, Retryable) and error.reason in ("busy", "engine_paused")
                failures += not waits
                if failures >= policy.tries or waited_s >= policy.max_wait_s:
                    raise
                delay_s = min(policy.delay_s * 2 ** max(0, failures - 1), policy.max_delay_s)
                if isinstance(error, Retryable) and error.retry_after_s is not None:
                    delay_s = min(error.retry_after_s, policy.max_delay_s)
                waited_s += delay_s if waits else 0.0
                await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        with self.active.waiting():
            await asyncio.sleep(delay_s)

    async def _call_within_time(self, request: GenRequest) -> tuple[GenResult | None, bool]:
        """The call, ended by id when the active time is over, so that what it has comes back."""
        call = asyncio.create_task(
            self.backend.generate(request, timeout_s=self.settings.call_timeout_s), name=f"model call {request.request_id}"
        )
        try:
            # Time that the backend spends waiting for a place is not active: look again until it is really used up.
            while not call.done() and (left_s := self.active.left_s) > 0:
                await asyncio.wait((call,), timeout=left_s)
            if call.done():
                return call.result(), False
            async with asyncio.timeout(ABORT_GRACE_S):
                await self.backend.abort(request.request_id)
                return await asyncio.shield(call), True
        except TimeoutError:
            return None, True
        except ModelError:
            if self.active.left_s > 0:
                raise
            return None, True
        finally:
            await _let_go(call)

    async def _pass_gate(self) -> None:
        with self.active.waiting():
            await self.gate()

    # ---- the environment's turn

    async def _use_tools(self, parsed: ParsedTurn) -> tuple[list[ChatMessage], AgentEnd | None]:
        """Answer every call of a turn, in order, each fault told."""
        replies: list[ChatMessage] = []
        errors = 0
        end: AgentEnd | None = None
        started = time.monotonic()
        answer = self._answer if self.used_tool is None else partial(self._told_answer, self.used_tool)
        for item in parsed.items[:MAX_CALLS_A_TURN]:
            text, is_fault, result = await answer(item)
            errors += is_fault
            replies.append(await self._reply(text, result.images) if result is not None and result.images else _from_tool(text))
            if result is not None and result.ends:
                end = AgentEnd(stop=StopReason.FINISHED, answer=result.answer)
                break
            if self.active.left_s <= 0:
                end = AgentEnd(stop=StopReason.TIME, answer=parsed.content)
                break
        more = len(parsed.items) - MAX_CALLS_A_TURN
        if more > 0 and end is None:
            errors += more
            replies.append(_from_tool(f"error: {more} more were not run: at most {MAX_CALLS_A_TURN} calls a turn"))
        self.recorder.end_turn(tools_s=time.monotonic() - started, tool_calls=len(parsed.items), tool_errors=errors)
        return replies, end

    async def _reply(self, text: str, files: Sequence[bytes]) -> ChatMessage:
        """A tool's answer with the images that it shows behind its text, as far as the model may see them."""
        images: list[SeenImage] = []
        for file in files:
            try:
                image = PromptImage.of(file)
                await self._pass_gate()
                seen = await self.images.see(image) if self.images is not None else None
                if seen is None:
                    raise BadImage(f"{image.kind}: this dialogue has its most images")
                images.append(seen)
            except BadImage as error:
                text += f"\n[not shown: {error}]"
        if not images:
            return _from_tool(text)
        return ShownMessage(role="tool", content=text, images=tuple((len(text), image) for image in images))

    async def _shown(self, message: ChatMessage) -> ChatMessage:
        """The message as a renderer takes it: its images read by the server, and kept."""
        if not isinstance(message, ImageMessage):
            return message
        if self.images is None:
            raise InvalidRequest("a message shows an image, and the model sees none: set chat.images", field="chat.images")
        await self._pass_gate()
        return await self.images.shown(message)

    async def _move(self, world: World, said: str) -> tuple[list[ChatMessage], AgentEnd | None]:
        """What the world says to a turn, as the next user message."""
        await self._pass_gate()
        started = time.monotonic()
        limits = self.job.template.limits
        timeout_s = max(0.0, min(limits.tool_timeout_s, self.active.left_s))
        found = await self._answer_of(world, said, timeout_s)
        self.recorder.end_turn(tools_s=time.monotonic() - started, tool_calls=0, tool_errors=0)
        text = cut_observation(self.renderer.tokenizer, found.text, limits.max_observation_tokens)
        end = AgentEnd(stop=StopReason.FINISHED, answer=said) if found.ends else None
        return [ChatMessage(role="user", content=text)], end

    async def _answer_of(self, world: World, said: str, timeout_s: float) -> WorldReply:
        """Its answer to a move, which has `timeout_s` and a grace of active time; stretches in which that stands do not count."""
        limit_s = timeout_s + self.settings.tool_grace_s
        over_at_s = self.active.left_s - limit_s
        move = asyncio.create_task(world.answer(said, timeout_s=timeout_s), name="move in a world")
        try:
            while not move.done() and (left_s := self.active.left_s - over_at_s) > 0:
                await asyncio.wait((move,), timeout=left_s)
            if not move.done():
                raise WorldOverran(limit_s)
            return move.result()
        finally:
            await _let_go(move)

    async def _told_answer(self, tell: Callable[[ToolUse], None], item: ToolCall | CallError) -> tuple[str, bool, ToolResult | None]:
        """`_answer`, and a word of how it went."""
        began_s = time.monotonic()
        name = "" if isinstance(item, CallError) else item.name
        try:
            text, is_fault, result = await self._answer(item)
        except BaseException as error:
            tell(ToolUse(name, began_s, False, type(error).__name__))
            raise
        wrong = "fault" if is_fault else "tool_error" if result is not None and result.is_error else ""
        tell(ToolUse(name, began_s, is_fault, wrong))
        return text, is_fault, result

    async def _answer(self, item: ToolCall | CallError) -> tuple[str, bool, ToolResult | None]:
        """What the model is told, whether the call was at fault, and the tool's result if it was run."""
        limits = self.job.template.limits
        fault = item.message if isinstance(item, CallError) else self.tools.complaint(item.name, item.arguments)
        if fault or isinstance(item, CallError):  # a fault may repeat what the model wrote, at any length
            return cut_observation(self.renderer.tokenizer, f"error: {fault}", limits.max_observation_tokens), True, None
        await self._pass_gate()
        if self.before_tool is not None:
            await self.before_tool(item)
        timeout_s = max(0.0, min(limits.tool_timeout_s, self.active.left_s))
        try:
            async with asyncio.timeout(timeout_s + self.settings.tool_grace_s) as guard:
                result = await self.tools[item.name](item.arguments, timeout_s=timeout_s)
        except TimeoutError as error:
            if guard.expired():
                raise ToolOverran(item.name, timeout_s + self.settings.tool_grace_s) from error
            raise
        return cut_observation(self.renderer.tokenizer, result.text, limits.max_observation_tokens), False, result


async def _let_go(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more: it is cancelled if it is under way, and an error of its own is taken note of."""
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    elif not task.cancelled():
        task.exception()  # whoever waited may be cancelled in the moment in which it failed, and then nobody asks for its error


def _from_tool(text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text)


def _refuse_bias(mode: LogprobsMode, job: JobSpec) -> None:
    bias = ratio_bias(mode, job.template.sampling)
    if bias and job.template.exact_logprobs:
        raise InvalidRequest(f"logprobs would not be of the distribution sampled from: {bias}", field="sampling")


def _with_budget(sampling: Sampling, max_tokens: int) -> Sampling:
    return sampling if sampling.max_tokens == max_tokens else replace(sampling, max_tokens=max_tokens)


def _signature(parsed: ParsedTurn, replies: Sequence[ChatMessage]) -> str:
    """A turn as the stuck detector sees it: what was called or said, and what came of it."""
    if parsed.items:
        return repr([(item, told(reply)) for item, reply in zip(parsed.items, replies, strict=False)])
    return repr((parsed.content, [told(reply) for reply in replies]))
