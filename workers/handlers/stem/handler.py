r"""The task `stem`: several turns, Python, a search where the worker has one, a final answer in `\boxed{}` or by `finish`, graded here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.resources import files

from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Grade, JobSpec, RewardSource, StopReason, Trajectory
from workers.graders import MathGrader, VerdictKind
from workers.graders.choice import compare_choices
from workers.graders.final_answer import final_answer
from workers.graders.quantity import Leeway, compare_quantities
from workers.graders.services import Asked
from workers.graders.short_text import compare_texts
from workers.graders.verdict import Verdict
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import Environment, EvalContext, StageContext
from workers.handlers.graded_by import graded_by
from workers.handlers.reward_service import A_SERVICE, REWARD_SERVICE, ServiceGrading
from workers.handlers.stem.layouts import LAYOUTS, QUESTIONS
from workers.handlers.stem.problem import Kind, Problem
from workers.handlers.submission import submitted
from workers.handlers.task_data import problem_in
from workers.handlers.task_options import Number, Option, Tools
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.tools import Tool, tools_called
from workers.tools.search import SearchClient, SearchSettings
from workers.tools.web_search import WebSearchTool

SYSTEM = "You answer questions of natural science. Think step by step.{tools} End with the answer alone in \\boxed{{}}{finish}."
USES = {
    "python": " You may compute with the tool `python`; its variables stay between calls.",
    "web_search": " You may look things up with the tool `web_search`.",
}
BY_FINISH = ", or hand it in with the tool `finish`"
SEARCH = "web_search"
DEFAULT_TOOLS = ("python", "think", "finish")
TOOLS = Option(
    name="tools",
    takes=Tools(usual=DEFAULT_TOOLS, more=(SEARCH,)),
    default=DEFAULT_TOOLS,
    about="what the model may call; `true` is the default",
)
ABS_TOL = Option[float | None](
    name="abs_tol", takes=Number(), default=None, without="*none*", about="leeway of values whose row has none, in the reference's unit"
)
REL_TOL = Option[float | None](
    name="rel_tol", takes=Number(), default=None, without="*none*", about="leeway of values whose row has none, relative"
)
JUDGE = Option(
    name="judge",
    takes=A_SERVICE,
    default="",
    without="*none*",
    about="a service that is asked about texts which are not the reference's words",
)
SAMPLES = (files("workers.handlers.stem.problems") / "science.jsonl",)
_SHOWN_CHARS = 2_000


class StemHandler(AgentHandler):
    """Problems of natural science; `layouts.py` has how rows are written.

    Args:
        search: where `web_search` goes; default: what the settings of this process say.
    """

    name = "stem"
    about = "A question of natural science: a choice, a value with its unit, a term or a formula, compared with the reference by kind."
    layouts = LAYOUTS
    samples = SAMPLES
    options = (TOOLS, ABS_TOL, REL_TOL, JUDGE, REWARD_SERVICE)

    def __init__(self, search: SearchSettings | None = None) -> None:
        self._math = MathGrader()
        self._search_settings = search
        self._search: SearchClient | None = None
        self._services = ServiceGrading()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        await self._stack.enter_async_context(self._math)
        await self._stack.enter_async_context(self._services)
        settings = self._search_settings or SearchSettings.load(self.config)
        if settings.url:
            self._search = await self._stack.enter_async_context(SearchClient(settings))

    async def close(self) -> None:
        await self._stack.aclose()

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        if "python" not in TOOLS.of(spec):
            return None
        return SandboxSpec(isolation=Isolation(spec.template.capability))

    async def init(self, context: StageContext) -> Environment:
        if context.spec.template.reward is not RewardSource.OUTSIDE:
            _problem(context.spec)  # a row that cannot be judged costs no sandbox
        return await super().init(context)

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        names = TOOLS.of(spec)
        system = SYSTEM.format(
            tools="".join(words for name, words in USES.items() if name in names), finish=BY_FINISH if "finish" in names else ""
        )
        asked = problem_in(spec.prompt.data, QUESTIONS).asked()
        return (ChatMessage(role="system", content=system), ChatMessage(role="user", content=asked))

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        names = TOOLS.of(spec)
        made = iter(tools_called((name for name in names if name != SEARCH), sandbox))
        return tuple(self._web_search() if name == SEARCH else next(made) for name in names)

    async def evaluate(self, context: EvalContext) -> Grade:
        problem = _problem(context.spec)
        grade = await self._services.grade(self, context, lambda trajectory: final_answer(trajectory.answer))
        if grade is not None:
            return grade
        answer = final_answer(context.trajectory.answer)
        verdict = Verdict("unreadable", "no_answer") if answer is None else await self._verdict(answer, problem, context.spec)
        judge = JUDGE.of(context.spec)
        if judge and answer is not None and problem.kind is Kind.TEXT and not verdict.is_right:
            verdict = await self._judged(judge, answer, problem, context.spec)
        details: dict[str, object] = {
            "verdict": verdict.kind,
            "reason": verdict.reason,
            "kind": problem.kind.value,
            "extracted": None if answer is None else answer[:_SHOWN_CHARS],
        }
        if verdict.reason == "answer_killed_grader":
            details["stop"] = StopReason.GRADER_BROKEN.value
        return Grade(
            reward=1.0 if verdict.is_right else 0.0,
            components={"answered": 0.0 if verdict.kind == "unreadable" else 1.0},
            details=details,
            grader=graded_by(self.name),
        )

    def gold(self, spec: JobSpec) -> Trajectory:
        return submitted(_problem(spec).gold())

    async def _verdict(self, answer: str, problem: Problem, spec: JobSpec) -> Verdict:
        match problem.kind:
            case Kind.CHOICE:
                return compare_choices(problem.right, answer, problem.options)
            case Kind.VALUE:
                return _best([compare_quantities(right, problem.unit, answer, _leeway(spec, problem)) for right in problem.answers])
            case Kind.TEXT:
                return compare_texts(problem.answers, answer)
            case Kind.FORMULA:
                verdict = await self._math.grade_any(rf"\boxed{{{answer}}}", problem.answers)
                if verdict.correct:
                    return Verdict("right", verdict.reason)
                return Verdict("unreadable" if verdict.kind is VerdictKind.UNPARSEABLE else "wrong", verdict.reason)

    async def _judged(self, judge: str, answer: str, problem: Problem, spec: JobSpec) -> Verdict:
        """What a judge says of a text that is not the reference's: other words for the same."""
        asked = Asked(
            question=problem.question,
            reference=" / ".join(problem.answers),
            response=answer,
            answer=answer,
            task=self.name,
            prompt_id=spec.prompt.id,
        )
        scored = await self._services.scored(self, judge, asked)
        return Verdict("right" if scored.score == 1.0 else "wrong", "judged")

    def _web_search(self) -> WebSearchTool:
        if self._search is None:
            raise InvalidRequest("no search service is set here: give the workers `url` of [search]", field="options.tools")
        return WebSearchTool(self._search)


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    """The one that is right, else the first."""
    return next((verdict for verdict in verdicts if verdict.is_right), verdicts[0])


def _problem(spec: JobSpec) -> Problem:
    return problem_in(spec.prompt.data, LAYOUTS)


def _leeway(spec: JobSpec, problem: Problem) -> Leeway:
    """The row's own, else the job's, else none: then the policy holds."""
    own, absolute, relative = problem.leeway, ABS_TOL.of(spec), REL_TOL.of(spec)
    if (absolute is None and relative is None) or own.relative is not None or own.absolute is not None or own.digits is not None:
        return own
    return replace(own, relative=relative, absolute=absolute)
