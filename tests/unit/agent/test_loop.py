"""The agent loop against an engine whose lines are given."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines import InvalidResponse, Refused, Retryable
from pipeline.engines.errors import Unsupported
from pipeline.errors import InvalidRequest, JobCancelled
from pipeline.messages import ChatMessage, JobSpec, Json, Limits, RoutedExperts, Sampling, StopReason, Trajectory
from pipeline.testing.builders import a_job, a_template
from pipeline.testing.wait import wait_until
from workers.agent import (
    ActiveTime,
    AgentEnd,
    AgentSettings,
    ChatMLRenderer,
    RetryPolicy,
    TrajectoryRecorder,
    TurnDelta,
    broken_promises,
    call_seed,
    first_difference,
    run_agent,
)
from workers.agent.renderers import THINKING_DROPPED
from workers.llm import GenRequest, GenResult, Span
from workers.llm.scripted import InProcessBackend, Problem, ServerOptions
from workers.llm.scripted.experts import made_up_experts
from workers.tools.base import Tool, ToolOverran, ToolResult, ToolSet
from workers.tools.finish import FinishTool

ASKED = [ChatMessage(role="system", content="Be careful."), ChatMessage(role="user", content="What is 2 + 2?")]
ANSWER = "So it is \\boxed{4}."


def call(expression: str) -> str:
    return f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{expression}"}}}}\n</tool_call>'


class Echo:
    """Answers with what it was given; remembers what it was given."""

    name = "echo"
    description = "Repeats a text."
    parameters: ClassVar[Json] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def __init__(self, answer: Callable[[str], str] = lambda text: f"<{text}>") -> None:
        self.heard: list[str] = []
        self._answer = answer

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        self.heard.append(str(arguments["text"]))
        return ToolResult(text=self._answer(self.heard[-1]))


@dataclass
class Scene:
    """One run of the loop and all that can be seen of it."""

    backend: InProcessBackend
    tools: Sequence[Tool] = ()
    limits: Limits = field(default_factory=lambda: Limits(run_active_s=60.0))
    sampling: Sampling = field(default_factory=Sampling)
    exact_logprobs: bool = True
    routed_experts: RoutedExperts | None = None
    settings: AgentSettings = field(default_factory=lambda: AgentSettings(retry=RetryPolicy(delay_s=0.0)))
    active: ActiveTime | None = None
    keep_thinking: bool = True
    gate_raises_at: int = -1
    recorder: TrajectoryRecorder = field(default_factory=TrajectoryRecorder)
    journal: list[TurnDelta] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    @property
    def job(self) -> JobSpec:
        template = a_template(
            limits=self.limits, sampling=self.sampling, exact_logprobs=self.exact_logprobs, routed_experts=self.routed_experts
        )
        return replace(a_job(), template=template)

    async def run(self) -> AgentEnd:
        async def gate() -> None:
            if len(self.gates) == self.gate_raises_at:
                raise JobCancelled("job", "redundant")
            self.events.append("gate")

        async def note(delta: TurnDelta) -> None:
            self.journal.append(delta)
            self.events.append("journal")

        async def before_tool(call: object) -> None:
            self.events.append("tool")

        return await run_agent(
            self.job,
            ASKED,
            backend=self.backend,
            renderer=ChatMLRenderer(self.backend.tokenizer, keep_thinking=self.keep_thinking),
            tools=ToolSet(self.tools),
            recorder=self.recorder,
            gate=gate,
            journal=note,
            before_tool=before_tool,
            active=self.active,
            settings=self.settings,
        )

    @property
    def gates(self) -> list[str]:
        return [event for event in self.events if event == "gate"]

    def trajectory(self, stop: StopReason = StopReason.FINISHED) -> Trajectory:
        trajectory = self.recorder.trajectory(stop)
        assert broken_promises(trajectory) == []
        return trajectory

    def text(self) -> str:
        return self.backend.tokenizer.decode(self.trajectory().segments[-1].token_ids.tolist())


async def test_a_tool_is_called_its_answer_shown_and_the_last_message_is_the_answer() -> None:
    echo = Echo()
    scene = Scene(InProcessBackend(["<think>\nhm\n</think>\n\n" + call("2+2"), ANSWER]), [echo])

    end = await scene.run()

    assert end == AgentEnd(stop=StopReason.FINISHED, answer=ANSWER)
    assert echo.heard == ["2+2"]
    assert "<tool_response>\n<2+2>\n</tool_response><|im_end|>\n<|im_start|>assistant\nSo it is" in scene.text()
    assert [turn.tool_calls for turn in scene.trajectory().turns] == [1, 0]
    assert [message.role for message in scene.trajectory().messages] == ["system", "user", "assistant", "tool", "assistant"]


async def test_promise_5_every_prompt_begins_with_the_one_before_and_what_was_sampled_on_it() -> None:
    backend = InProcessBackend([call("1"), call("2"), ANSWER])
    scene = Scene(backend, [Echo()])

    await scene.run()

    record = scene.trajectory().segments[0].token_ids.tolist()
    for request, turn in zip(backend.requests, scene.trajectory().turns, strict=True):
        assert list(request.prompt_ids) == record[: turn.start]
    assert first_difference(backend.requests[0].prompt_ids, backend.requests[1].prompt_ids) is None


async def test_ids_the_tokenizer_would_not_choose_stay_as_they_were_sampled() -> None:
    backend = InProcessBackend()
    tokenizer = backend.tokenizer
    odd = [id_ for letter in "Hello, so it is 4." for id_ in tokenizer.encode(letter)]
    scene = Scene(InProcessBackend([[*odd, tokenizer.special("<|im_end|>")]]))

    await scene.run()

    turn = scene.trajectory().turns[0]
    assert scene.trajectory().segments[0].token_ids[turn.start : turn.end - 1].tolist() == odd
    assert odd != tokenizer.encode("Hello, so it is 4.")


async def test_a_turn_records_how_it_was_sampled() -> None:
    scene = Scene(InProcessBackend([ANSWER]), sampling=Sampling(temperature=0.8))

    await scene.run()

    (turn,) = scene.trajectory().turns
    assert (turn.sampling.temperature, turn.seed, turn.logprobs_mode) == (0.8, call_seed(scene.job, 0), "processed")
    assert turn.request_id == f"{scene.job.job}.1.0.0"
    assert turn.tokenizer == scene.backend.tokenizer.fingerprint
    assert turn.template == ChatMLRenderer(scene.backend.tokenizer).fingerprint
    assert (turn.server, turn.cached_tokens, turn.finish) == ("in process", 0, "stop")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('<tool_call>\n{"name": "echo", "arguments": {"text": }}\n</tool_call>', "not valid JSON"),
        ('<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>', "there is no tool 'rm'; the tools are: echo"),
        ('<tool_call>\n{"name": "echo", "arguments": {"words": 1}}\n</tool_call>', "argument 'text' is missing"),
        ('<tool_call>\n{"name": "echo", "arguments": {"text": 1}}\n</tool_call>', "must be of type string, got int"),
    ],
)
async def test_a_call_that_cannot_be_run_is_told_and_the_model_goes_on(said: str, told: str) -> None:
    echo = Echo()
    scene = Scene(InProcessBackend([said, ANSWER]), [echo])

    end = await scene.run()

    assert (end.stop, echo.heard) == (StopReason.FINISHED, [])
    assert told in scene.text()
    assert scene.trajectory().turns[0].tool_errors == 1


async def test_a_good_and_a_bad_call_of_one_turn_are_answered_in_their_order() -> None:
    echo = Echo()
    scene = Scene(InProcessBackend([call("a") + '\n<tool_call>\n{"name": }\n</tool_call>\n' + call("b"), ANSWER]), [echo])

    await scene.run()

    assert echo.heard == ["a", "b"]
    answers = [message.content for message in scene.trajectory().messages if message.role == "tool"]
    assert [answers[0], answers[1][:6], answers[2]] == ["<a>", "error:", "<b>"]


async def test_a_turn_of_many_calls_and_faults_is_answered_in_bounds() -> None:
    """A model stuck on an opening tag was told of each of them: 257 answers of 30 tokens ate a fifth of a context of 32,768."""
    echo = Echo()
    scene = Scene(InProcessBackend([call("a") * 15 + "<tool_call>" * 40, ANSWER]), [echo])

    await scene.run()

    answers = [message.content for message in scene.trajectory().messages if message.role == "tool"]
    assert (len(echo.heard), len(answers), answers[-1]) == (15, 17, "error: 39 more were not run: at most 16 calls a turn")
    assert (scene.trajectory().turns[0].tool_calls, scene.trajectory().turns[0].tool_errors) == (55, 40)


async def test_what_a_complaint_repeats_of_the_model_is_cut_like_any_observation() -> None:
    class Strict(Echo):
        parameters: ClassVar[Json] = {"type": "object", "properties": {}, "additionalProperties": False}

    said = f'<tool_call>{{"name": "echo", "arguments": {{"{"key " * 400}": 1}}}}</tool_call>'
    scene = Scene(InProcessBackend([said, ANSWER]), [Strict()], limits=Limits(max_observation_tokens=50))

    await scene.run()

    (answer,) = [message.content for message in scene.trajectory().messages if message.role == "tool"]
    assert len(scene.backend.tokenizer.encode(answer)) <= 50


async def test_a_call_that_was_cut_off_is_never_run() -> None:
    echo = Echo()
    scene = Scene(InProcessBackend([call("rm -rf")]), [echo], sampling=Sampling(max_tokens=20))

    end = await scene.run()

    assert (end.stop, echo.heard) == (StopReason.TOKENS, [])
    assert scene.trajectory().turns[0].finish == "length"


async def test_a_call_inside_a_thought_is_not_run() -> None:
    echo = Echo()
    scene = Scene(InProcessBackend([f"<think>\nmaybe {call('x')}\n</think>\n\n{ANSWER}"]), [echo])

    end = await scene.run()

    assert (end.answer, echo.heard) == (ANSWER, [])


async def test_the_finish_tool_hands_in_its_answer_and_ends_the_turn_there() -> None:
    echo = Echo()
    finish = '<tool_call>\n{"name": "finish", "arguments": {"answer": "4"}}\n</tool_call>'
    scene = Scene(InProcessBackend([f"{finish}\n{call('after')}"]), [echo, FinishTool()])

    end = await scene.run()

    assert end == AgentEnd(stop=StopReason.FINISHED, answer="4")
    assert echo.heard == []


async def test_every_model_and_tool_call_passes_the_gate_and_a_turn_is_journalled_before_the_next() -> None:
    scene = Scene(InProcessBackend([call("a") + call("b"), ANSWER]), [Echo()])

    await scene.run()

    assert scene.events == ["gate", "gate", "tool", "gate", "tool", "journal", "gate", "journal"]


@pytest.mark.parametrize(("at", "calls", "heard"), [(0, 0, 0), (1, 1, 0), (2, 1, 1)])
async def test_behind_a_closed_gate_nothing_starts_and_the_record_stays(at: int, calls: int, heard: int) -> None:
    echo = Echo()
    scene = Scene(InProcessBackend([call("a"), ANSWER]), [echo], gate_raises_at=at)

    with pytest.raises(JobCancelled):
        await scene.run()

    assert (len(scene.backend.requests), len(echo.heard)) == (calls, heard)
    assert len(scene.trajectory(StopReason.LOST).turns) == calls


async def test_the_journal_put_together_is_the_trajectory() -> None:
    scene = Scene(InProcessBackend([call("a"), call("b"), ANSWER]), [Echo()])

    await scene.run()

    from tests.unit.agent.test_trajectory import assert_same

    assert len(scene.journal) == 3
    replayed = TrajectoryRecorder.replay(scene.journal)
    assert_same(replayed.trajectory(StopReason.LOST), scene.trajectory(StopReason.LOST))
    assert (list(replayed.ids), list(replayed.turn_places)) == (list(scene.recorder.ids), list(scene.recorder.turn_places))


async def test_turns_are_bounded() -> None:
    scene = Scene(InProcessBackend([call(str(n)) for n in range(9)]), [Echo()], limits=Limits(max_turns=3))

    end = await scene.run()

    assert (end.stop, len(scene.trajectory().turns)) == (StopReason.TURNS, 3)


async def test_sampled_tokens_are_bounded_over_all_turns() -> None:
    scene = Scene(InProcessBackend([call(str(n)) for n in range(99)]), [Echo()], limits=Limits(max_turns=99, max_sampled_tokens=100))

    end = await scene.run()

    assert end.stop is StopReason.TOKENS
    assert scene.recorder.sampled_tokens == 100


async def test_a_full_context_ends_the_trajectory_and_keeps_it() -> None:
    options = ServerOptions(max_model_len=420)
    scene = Scene(InProcessBackend([call(str(n)) for n in range(99)], options=options), [Echo()], limits=Limits(max_turns=99))

    end = await scene.run()

    assert end.stop is StopReason.CONTEXT
    assert len(scene.trajectory().turns) >= 2


@given(st.integers(1, 16), st.integers(0, 60), st.integers(200, 700))
async def test_no_record_is_longer_than_its_limit(n_calls: int, answer: int, limit: int) -> None:
    """Answers that left no room were recorded all the same, sixteen of a thousand tokens each behind a context that was full: for a trainer
    that makes its batches as long as the limit."""
    backend = InProcessBackend(["\n".join(call(f"{turn}.{n}") for n in range(n_calls)) for turn in range(9)])
    scene = Scene(backend, [Echo(lambda text: f"{text}{' a' * answer}")], limits=Limits(max_turns=9, max_context_tokens=limit))

    end = await scene.run()

    trajectory = scene.trajectory()
    assert max(len(segment.token_ids) for segment in trajectory.segments) <= limit
    assert end.stop in (StopReason.CONTEXT, StopReason.TURNS)
    assert trajectory.messages[-1].role == ("tool" if trajectory.turns[-1].finish == "stop" else "assistant")
    assert TrajectoryRecorder.replay(scene.journal).trajectory(end.stop).messages == trajectory.messages


async def test_the_same_call_with_the_same_answer_again_and_again_is_stuck() -> None:
    scene = Scene(InProcessBackend([call("a")] * 9), [Echo()], limits=Limits(max_turns=9))

    end = await scene.run()

    assert (end.stop, len(scene.trajectory().turns)) == (StopReason.STUCK, 4)


async def test_the_same_call_with_other_answers_is_not_stuck() -> None:
    echo = Echo()
    counting = Echo(lambda text: f"{text} {len(counting.heard)}")
    scene = Scene(InProcessBackend([call("a")] * 6 + [ANSWER]), [counting])

    end = await scene.run()

    assert (end.stop, echo.heard) == (StopReason.FINISHED, [])


async def test_two_calls_in_alternation_are_stuck() -> None:
    scene = Scene(InProcessBackend([call("a"), call("b")] * 5), [Echo()], limits=Limits(max_turns=10))

    end = await scene.run()

    assert (end.stop, len(scene.trajectory().turns)) == (StopReason.STUCK, 6)


async def test_active_time_that_ends_in_a_model_call_keeps_what_the_call_has() -> None:
    backend = InProcessBackend([list(range(5, 900))], token_s=0.02)
    active = ActiveTime(0.05, lambda: 100.0 if backend.engine.generation_tokens > 2 else 0.0)
    scene = Scene(backend, active=active)

    end = await scene.run()

    (turn,) = scene.trajectory().turns
    assert (end.stop, turn.finish) == (StopReason.TIME, "abort")
    assert 2 < turn.end - turn.start < 895
    assert backend.engine.request_ids() == []


async def test_active_time_that_ended_in_a_tool_ends_the_trajectory() -> None:
    now = [0.0]

    def slow(text: str) -> str:
        now[0] = 100.0
        return text

    scene = Scene(InProcessBackend([call("a"), ANSWER]), [Echo(slow)], active=ActiveTime(60.0, lambda: now[0]))

    end = await scene.run()

    assert (end.stop, len(scene.backend.requests)) == (StopReason.TIME, 1)


async def test_a_turn_an_abort_interrupted_goes_on_from_what_it_has_under_another_seed() -> None:
    tokenizer = InProcessBackend().tokenizer
    rest = " and so it is \\boxed{4}."
    backend = InProcessBackend([[*tokenizer.encode("Let me think")] * 40, rest], token_s=0.02)
    scene = Scene(backend)
    running = asyncio.create_task(scene.run())
    await wait_until(lambda: backend.engine.generation_tokens > 2, "tokens come out")

    await backend.engine.pause("abort", clear_cache=True)
    backend.engine.set_version("2.0")
    backend.engine.resume()

    end = await running
    first, second = scene.trajectory().turns
    assert (first.finish, second.finish, first.end) == ("abort", "stop", second.start)
    assert first.seed != second.seed
    assert end.stop is StopReason.FINISHED
    assert end.answer.startswith("Let me think")
    assert end.answer.endswith(rest)
    assert [span.version for span in scene.trajectory().segments[0].versions] == ["default", "2.0"]
    assert list(backend.requests[1].prompt_ids) == scene.trajectory().segments[0].token_ids[: second.start].tolist()


async def test_a_turn_that_is_aborted_again_and_again_goes_on_as_long_as_tokens_come() -> None:
    """Weights are updated every few seconds while one long turn goes on. It failed when it had been aborted 32 times."""

    class Updated(InProcessBackend):
        async def generate(self, request, *, timeout_s):  # type: ignore[no-untyped-def]  # as its parent's
            result = await super().generate(request, timeout_s=timeout_s)
            if len(self.requests) > 100:
                return result
            first = Span(version="1.0", start=0, end=1)  # what is said at once has its end token, too
            return replace(result, finish="abort", output_ids=result.output_ids[:1], logprobs=result.logprobs[:1], spans=(first,))

    scene = Scene(Updated([*[[7]] * 100, ANSWER]))

    end = await scene.run()

    assert end.stop is StopReason.FINISHED
    assert [turn.finish for turn in scene.trajectory().turns] == ["abort"] * 100 + ["stop"]


async def test_an_abort_again_and_again_without_a_token_is_an_error_of_the_server() -> None:
    class Impatient(InProcessBackend):
        async def generate(self, request, *, timeout_s):  # type: ignore[no-untyped-def]  # as its parent's
            result = await super().generate(request, timeout_s=timeout_s)
            return replace(result, finish="abort", output_ids=[], logprobs=[], spans=())

    scene = Scene(Impatient([[7]] * 99))

    with pytest.raises(Retryable) as caught:
        await scene.run()

    assert caught.value.reason == "aborted"


async def test_a_server_in_trouble_is_asked_again_with_the_same_seed_and_another_id() -> None:
    backend = InProcessBackend([Retryable("engine_failed", "s", "x"), InvalidResponse("echo", "x"), ANSWER])
    scene = Scene(backend)

    end = await scene.run()

    assert end.stop is StopReason.FINISHED
    assert len({request.seed for request in backend.requests}) == 1
    assert len({request.request_id for request in backend.requests}) == 3
    assert len(scene.gates) == 3


async def test_after_some_failures_the_error_is_raised_and_no_reward_or_reason_made_of_it() -> None:
    scene = Scene(InProcessBackend([call("a"), *[Retryable("engine_failed", "s", "x")] * 3]), [Echo()])

    with pytest.raises(Retryable):
        await scene.run()

    assert len(scene.trajectory(StopReason.LOST).turns) == 1


async def test_waiting_for_a_busy_or_paused_server_is_no_failure() -> None:
    busy = [Retryable("busy", "s", "x", status=503), Retryable("engine_paused", "s", "x", status=503)] * 5
    scene = Scene(InProcessBackend([*busy, ANSWER]))

    assert (await scene.run()).stop is StopReason.FINISHED


async def test_what_a_server_refuses_is_not_asked_again() -> None:
    scene = Scene(InProcessBackend([Refused("s", 400, "no"), ANSWER]))

    with pytest.raises(Refused):
        await scene.run()

    assert len(scene.backend.requests) == 1


async def test_what_breaks_under_a_tool_is_raised_and_the_record_stays() -> None:
    def broken(text: str) -> str:
        raise ConnectionResetError("sandbox gone")

    scene = Scene(InProcessBackend([call("a"), ANSWER]), [Echo(broken)])

    with pytest.raises(ConnectionResetError):
        await scene.run()

    assert len(scene.trajectory(StopReason.SANDBOX_BROKEN).turns) == 1


async def test_a_tool_that_does_not_keep_its_time_is_broken() -> None:
    class Sleepy(Echo):
        async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
            await asyncio.Event().wait()
            raise AssertionError

    settings = AgentSettings(tool_grace_s=0.01)
    scene = Scene(InProcessBackend([call("a")]), [Sleepy()], limits=Limits(tool_timeout_s=0.01), settings=settings)

    with pytest.raises(ToolOverran):
        await scene.run()


async def test_a_cancelled_loop_leaves_no_call_at_the_engine() -> None:
    backend = InProcessBackend([list(range(5, 900))], token_s=0.05)
    running = asyncio.create_task(Scene(backend).run())
    await wait_until(backend.engine.request_ids, "the call runs")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert backend.engine.request_ids() == []


class CancelledBackend(InProcessBackend):
    """A pool whose job is cancelled while it waits for a server."""

    def __init__(self) -> None:
        super().__init__([ANSWER])
        self.waits, self.cancelled = asyncio.Event(), asyncio.Event()

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        self.waits.set()
        await self.cancelled.wait()
        raise JobCancelled("job", "user")


async def test_a_call_that_fails_in_the_moment_of_a_cancel_is_not_left_with_its_error() -> None:
    """Its error had nobody who asked for it: the log of a worker had "Task exception was never retrieved" after each cancelled run."""
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
    gc.collect()  # what others left is theirs
    unheard.clear()
    backend = CancelledBackend()
    running = asyncio.create_task(Scene(backend).run())
    await backend.waits.wait()

    backend.cancelled.set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    del running
    await asyncio.sleep(0)  # the event loop lets go of it
    gc.collect()

    assert unheard == []


async def test_long_answers_of_tools_are_cut_in_tokens() -> None:
    echo = Echo(lambda text: "word " * 10_000)
    scene = Scene(InProcessBackend([call("a"), ANSWER]), [echo], limits=Limits(max_observation_tokens=64))

    await scene.run()

    (answer,) = [message.content for message in scene.trajectory().messages if message.role == "tool"]
    assert len(scene.backend.tokenizer.encode(answer)) <= 64
    assert "left out" in answer


async def test_too_many_calls_in_one_turn_are_not_all_run() -> None:
    echo = Echo()
    scene = Scene(InProcessBackend(["\n".join(call(str(n)) for n in range(20)), ANSWER]), [echo])

    await scene.run()

    assert len(echo.heard) == 16
    assert scene.trajectory().turns[0].tool_errors == 4


async def test_a_cut_turn_can_be_followed_by_another_and_its_end_is_not_the_model_s() -> None:
    settings = AgentSettings(continue_after_length=True)
    scene = Scene(InProcessBackend([list(range(300, 400)), ANSWER]), sampling=Sampling(max_tokens=30), settings=settings)

    end = await scene.run()

    segment = scene.trajectory().segments[0]
    cut = scene.trajectory().turns[0]
    assert (end.stop, cut.finish, len(scene.trajectory().segments)) == (StopReason.FINISHED, "length", 1)
    assert segment.token_ids[cut.end] == scene.backend.policy.end_id
    assert segment.sampled_mask[cut.end] == 0


async def test_a_prompt_that_must_break_with_the_record_begins_a_segment_and_says_why() -> None:
    thought = [*InProcessBackend().tokenizer.encode_template("<think>\nhm\n</think>\n\n"), *range(300, 400)]
    settings = AgentSettings(continue_after_length=True)
    scene = Scene(InProcessBackend([thought, ANSWER]), sampling=Sampling(max_tokens=30), settings=settings, keep_thinking=False)

    await scene.run()

    first, second = scene.trajectory().segments
    assert (second.began, second.parent) == (THINKING_DROPPED, 0)
    assert second.fork == scene.trajectory().turns[0].start
    assert second.sampled_mask[: scene.trajectory().turns[1].start].sum() == 0
    assert first.sampled_mask.sum() == 30


async def test_sampling_whose_logprobs_would_mislead_the_trainer_is_refused_unless_nothing_is_trained_on_it() -> None:
    truncated = Sampling(top_p=0.9)
    scene = Scene(InProcessBackend([ANSWER]), sampling=truncated)
    with pytest.raises(InvalidRequest, match="top_p"):
        await scene.run()

    validation = Scene(InProcessBackend([ANSWER]), sampling=truncated, exact_logprobs=False)
    assert (await validation.run()).stop is StopReason.FINISHED


async def test_stop_strings_cut_the_text_and_not_the_record() -> None:
    settings = AgentSettings(stop=("Observation:",))
    scene = Scene(InProcessBackend(["I look it up.\nObservation: 4"]), settings=settings)

    end = await scene.run()

    assert end.answer == "I look it up."
    turn = scene.trajectory().turns[0]
    said = scene.trajectory().segments[0].token_ids[turn.start : turn.end].tolist()
    assert "Observation:" in scene.backend.tokenizer.decode(said)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3), st.integers(0, 15), st.integers(0, 3), st.integers(0, 3)), unique=True))
def test_no_two_model_calls_share_a_seed(who: list[tuple[int, int, int, int, int]]) -> None:
    seeds = {
        call_seed(replace(a_job(prompt=f"e0-i{prompt}", member=member), draw=draw), turn, part) for prompt, draw, member, turn, part in who
    }

    assert len(seeds) == len(who)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_another_attempt_of_a_job_samples_the_same_and_another_run_does_not() -> None:
    job = a_job()

    assert call_seed(replace(job, attempt=9), 0) == call_seed(job, 0)
    assert call_seed(replace(job, template=a_template(run_seed=1)), 0) != call_seed(job, 0)


async def test_promise_6_holds_for_whatever_the_policy_says() -> None:
    problems = [Problem(f"What is {n} + {n}?", str(2 * n)) for n in range(6)]
    for member, problem in enumerate(problems * 4):
        scene = Scene(InProcessBackend(problems=problems), [Echo()], sampling=Sampling(max_tokens=300))
        job = replace(scene.job, member=member)
        end = await run_agent(
            job,
            [ChatMessage(role="user", content=problem.question)],
            backend=scene.backend,
            renderer=ChatMLRenderer(scene.backend.tokenizer),
            tools=ToolSet([Echo()]),
            recorder=scene.recorder,
            gate=lambda: asyncio.sleep(0),
        )
        assert end.stop in (StopReason.FINISHED, StopReason.TOKENS)
        assert scene.trajectory().turns


async def test_each_call_is_asked_for_the_experts_that_are_not_here_yet() -> None:
    """A dialogue of many turns over a long prompt would else bring the experts of all of it with each turn."""
    model = RoutedExperts(layers=3, top_k=2, experts=300)
    scene = Scene(
        InProcessBackend([call("one"), call("two"), ANSWER], options=ServerOptions(routed_experts=model)),
        tools=[Echo()],
        routed_experts=model,
    )

    await scene.run()

    ((index, rows),) = scene.recorder.experts()
    (segment,) = scene.recorder.trajectory(StopReason.FINISHED).segments
    ends = [turn.end for turn in scene.recorder.turns]
    assert (index, rows.dtype.name, len(rows)) == (0, "uint16", len(segment.token_ids) - 1)
    assert (rows == made_up_experts(segment.token_ids, model)).all()
    assert [request.experts_from for request in scene.backend.requests] == [0, ends[0] - 1, ends[1] - 1]


async def test_a_model_without_the_experts_that_were_asked_for_ends_the_attempt() -> None:
    scene = Scene(InProcessBackend([ANSWER]), routed_experts=RoutedExperts(layers=3, top_k=2, experts=300))

    with pytest.raises(Unsupported, match="routed"):
        await scene.run()
