r"""The task `reasoning_gym`: a puzzle of the package of that name, an answer in `<answer>` tags, and the package's own score.

A row that names its puzzle is made twice, in INIT and in EVAL; INIT's question and digest travel with the job, and EVAL scores nothing but
the same puzzle. Members of a group, on whichever nodes, are asked the same, as long as these have one version of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.resources import files

from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Grade, JobSpec, RewardSource, StopReason, Trajectory
from workers.graders.errors import GraderError
from workers.graders.reasoning_gym import BadPuzzle, Made, Puzzle, PuzzleGrader, made_now, reference_of
from workers.graders.reasoning_gym.grader import PACKAGE, is_installed
from workers.graders.tagged_answer import tagged, tagged_answer
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext
from workers.handlers.graded_by import graded_by
from workers.handlers.reasoning_gym.layouts import LAYOUTS, QUESTIONS
from workers.handlers.reward_service import REWARD_SERVICE, ServiceGrading
from workers.handlers.submission import submitted
from workers.handlers.task_data import BadTaskData, problem_in
from workers.handlers.task_options import Option, Truth
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.tools import Tool, tools_called

SYSTEM = (
    "You solve puzzles. Think step by step. {tools}End with the answer alone, in the form that the puzzle asks for, "
    "between <answer> and </answer>."
)
WITH_PYTHON = "You may compute with the tool `python`; its variables stay between calls. "
SAMPLES = (files("workers.handlers.reasoning_gym.problems") / "puzzles.jsonl",)
TOOLS = Option(name="tools", takes=Truth(), default=False, about="whether the model has `python`")
SERVICE = replace(REWARD_SERVICE, about="a service of the workers judges in place of the scorer; of rows that hold their entry")
INSTALL = "pip install 'rollstream[reasoning-gym]'"
_REFERENCE = "reference"
"""In `extra` of a gold trajectory whose answer is not in the row: the scorer takes the puzzle's own."""
_SHOWN_CHARS = 2_000


class ReasoningGymHandler(AgentHandler):
    """Puzzles; `layouts.py` has how rows are written.

    Args:
        grader: entered and left with the handler; default: one with the usual limits.
    """

    name = "reasoning_gym"
    about = "A puzzle of the package reasoning-gym, scored by it, with fractions; needs the extra reasoning-gym."
    layouts = LAYOUTS
    samples = SAMPLES
    options = (TOOLS, SERVICE)
    package = PACKAGE
    """What must be installed."""

    def __init__(self, grader: PuzzleGrader | None = None) -> None:
        self._grader = grader or PuzzleGrader()
        self._services = ServiceGrading()
        self._is_open = False
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        if not is_installed(self.package):
            raise InvalidRequest(f"task {self.name!r} needs the package reasoning-gym: {INSTALL}", field="task")
        await self._stack.enter_async_context(self._grader)
        await self._stack.enter_async_context(self._services)
        self._is_open = True

    async def close(self) -> None:
        await self._stack.aclose()

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        return SandboxSpec(isolation=Isolation(spec.template.capability)) if TOOLS.of(spec) else None

    async def init(self, context: StageContext) -> Environment:
        made: dict[str, object] = {}
        if context.spec.template.reward is not RewardSource.OUTSIDE or not problem_in(context.spec.prompt.data, QUESTIONS).question:
            puzzle = _puzzle(context.spec)
            if puzzle.entry is None:  # before there is a sandbox: a row that cannot be made costs none
                found = await self._make(puzzle)
                made = {"question": found.question, "digest": found.digest}
        environment = await super().init(context)
        return replace(environment, data=made)

    async def run(self, context: RunContext) -> Trajectory:
        question = context.environment.data.get("question")
        if isinstance(question, str):  # the model is asked what INIT made
            asked = replace(context.spec.prompt, data={"question": question})
            context = replace(context, spec=replace(context.spec, prompt=asked))
        return await super().run(context)

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        """How the dialogue begins. A puzzle that is not made yet is made while the caller waits: `run` has made it before."""
        problem = problem_in(spec.prompt.data, QUESTIONS)
        question = problem.question or _now(_puzzle(spec)).question
        system = SYSTEM.format(tools=WITH_PYTHON if TOOLS.of(spec) else "")
        return (ChatMessage(role="system", content=system), ChatMessage(role="user", content=question))

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return () if sandbox is None else tools_called(("python",), sandbox)

    async def evaluate(self, context: EvalContext) -> Grade:
        puzzle = _puzzle(context.spec)
        if SERVICE.of(context.spec) and puzzle.entry is None:
            raise InvalidRequest("a reward service judges rows that hold their entry alone", field="options.reward_service")
        grade = await self._services.grade(self, context, lambda trajectory: tagged_answer(trajectory.answer))
        if grade is not None:
            return grade
        answer = tagged_answer(context.trajectory.answer)
        details: dict[str, object] = {"dataset": puzzle.dataset, "extracted": None if answer is None else answer[:_SHOWN_CHARS]}
        is_reference = context.trajectory.extra.get(_REFERENCE) is True
        if answer is None and not is_reference:
            return Grade(reward=0.0, components={"answered": 0.0}, details={**details, "reason": "no_answer"}, grader=graded_by(self.name))
        try:
            verdict = await (self._grader.score_reference(puzzle) if is_reference else self._grader.score(puzzle, answer or ""))
        except BadPuzzle as broken:
            raise BadTaskData(f"prompt: {broken}", field="dataset") from broken
        expected = context.environment.data.get("digest")
        if expected is not None and verdict.digest and verdict.digest != expected:
            which = f"{puzzle.dataset} {puzzle.index} of seed {puzzle.seed}"
            why = f"{which} is another puzzle here than INIT made: are the packages of one version?"
            raise GraderError(why, grader=self.name)
        details["reason"] = verdict.reason
        if verdict.reason == "answer_killed_grader":
            details["stop"] = StopReason.GRADER_BROKEN.value
        return Grade(
            reward=verdict.score, components={"answered": 1.0}, details=details, grader=graded_by(self.name), seconds=verdict.seconds
        )

    def gold(self, spec: JobSpec) -> Trajectory | None:
        """What must score 1; None where the package itself holds no answer."""
        puzzle = _puzzle(spec)
        if puzzle.entry is not None:
            reference = reference_of(puzzle.entry)
            return None if reference is None else submitted(tagged(reference))
        if self._is_open:
            return submitted("", {_REFERENCE: True})  # it is made where it is scored
        reference = _now(puzzle).reference
        return None if reference is None else submitted(tagged(reference))

    async def _make(self, puzzle: Puzzle) -> Made:
        try:
            return await self._grader.make(puzzle)
        except BadPuzzle as broken:
            raise BadTaskData(f"prompt: {broken}", field="dataset") from broken


def _puzzle(spec: JobSpec) -> Puzzle:
    puzzle = problem_in(spec.prompt.data, LAYOUTS).puzzle
    assert puzzle is not None  # only a row of a question alone has none
    return puzzle


def _now(puzzle: Puzzle) -> Made:
    if not is_installed():
        raise InvalidRequest(f"this puzzle is made by the package reasoning-gym: {INSTALL}", field="dataset")
    try:
        return made_now(puzzle)
    except BadPuzzle as broken:
        raise BadTaskData(f"prompt: {broken}", field="dataset") from broken
