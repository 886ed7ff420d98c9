r"""The task `math`: several turns, the tool `python`, a final answer in `\boxed{}`, graded here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.resources import files

from pipeline.messages import ChatMessage, Grade, JobSpec, RewardSource, StopReason, Trajectory
from workers.graders import MathGrader, Tolerance, VerdictKind
from workers.graders.final_answer import final_answer
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import Environment, EvalContext, StageContext
from workers.handlers.graded_by import graded_by
from workers.handlers.math.layouts import LAYOUTS, QUESTIONS, Problem
from workers.handlers.reward_service import REWARD_SERVICE, ServiceGrading
from workers.handlers.submission import submitted
from workers.handlers.task_data import problem_in
from workers.handlers.task_options import Number, Option, Truth
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.tools import Tool, tools_called

SYSTEM = "You solve mathematical problems. Think step by step. {tools}End with the answer alone in \\boxed{{}}; only the last box counts."
WITH_PYTHON = "You may compute with the tool `python`; its variables stay between calls. "
SAMPLES = tuple(files("workers.handlers.math.problems") / f"{name}.jsonl" for name in ("arithmetic", "competition"))
"""Word problems and arithmetic made with reasoning-gym, and competition-style problems of our own."""
TOOLS = Option(name="tools", takes=Truth(), default=True, about="whether the model has `python`")
ABS_TOL = Option(name="abs_tol", takes=Number(below=1), default=0.0, about="leeway for numbers, absolute")
REL_TOL = Option(name="rel_tol", takes=Number(below=1), default=0.0, about="leeway for numbers, relative")


class MathHandler(AgentHandler):
    """Mathematical problems; `layouts.py` has how rows are written.

    Args:
        grader: entered and left with the handler; default: one with the usual limits.
    """

    name = "math"
    about = r"A mathematical problem with one answer, which comes in \boxed{} and is compared with the reference by its value."
    layouts = LAYOUTS
    samples = SAMPLES
    options = (TOOLS, REWARD_SERVICE, ABS_TOL, REL_TOL)

    def __init__(self, grader: MathGrader | None = None) -> None:
        self._grader = grader or MathGrader()
        self._services = ServiceGrading()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        await self._stack.enter_async_context(self._grader)
        await self._stack.enter_async_context(self._services)

    async def close(self) -> None:
        await self._stack.aclose()

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        if not TOOLS.of(spec):
            return None
        return SandboxSpec(isolation=Isolation(spec.template.capability))

    async def init(self, context: StageContext) -> Environment:
        if context.spec.template.reward is not RewardSource.OUTSIDE:
            _problem(context.spec)  # a row that cannot be judged costs no sandbox
        return await super().init(context)

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        system = SYSTEM.format(tools=WITH_PYTHON if TOOLS.of(spec) else "")
        return (
            ChatMessage(role="system", content=system),
            ChatMessage(role="user", content=problem_in(spec.prompt.data, QUESTIONS).question),
        )

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return () if sandbox is None else tools_called(("python",), sandbox)

    async def evaluate(self, context: EvalContext) -> Grade:
        problem = _problem(context.spec)
        grade = await self._services.grade(self, context, lambda trajectory: final_answer(trajectory.answer))
        if grade is not None:
            return grade
        verdict = await self._grader.grade_any(context.trajectory.answer, problem.answers, tolerance=_tolerance(context.spec, problem))
        details: dict[str, object] = {"verdict": verdict.kind.value, "extracted": verdict.extracted, "reason": verdict.reason}
        if verdict.reason == "answer_killed_grader":
            details["stop"] = StopReason.GRADER_BROKEN.value
        return Grade(
            reward=1.0 if verdict.correct else 0.0,
            components={"boxed": 0.0 if verdict.kind is VerdictKind.UNPARSEABLE else 1.0},
            details=details,
            grader=graded_by(self.name),
            seconds=verdict.seconds,
        )

    def gold(self, spec: JobSpec) -> Trajectory:
        return submitted(rf"\boxed{{{_problem(spec).answers[0]}}}")


def _problem(spec: JobSpec) -> Problem:
    return problem_in(spec.prompt.data, LAYOUTS)


def _tolerance(spec: JobSpec, problem: Problem) -> Tolerance:
    return Tolerance(absolute=ABS_TOL.of(spec), relative=REL_TOL.of(spec), worked_out=problem.worked_out)
