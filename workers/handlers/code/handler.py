"""The task `code`: several turns with a shell, Python and an editor, then a program, which is run on tests that the model never saw."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from pipeline.messages import ChatMessage, Grade, JobSpec, Json, RewardSource, Trajectory
from workers.agent import AgentEnd
from workers.graders.code import CodeVerdict, TestVerdict, Verdict, grade_program, sandbox_limits, tests_at_once
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext
from workers.handlers.code.fences import fenced, last_program
from workers.handlers.code.layouts import LAYOUTS, QUESTIONS
from workers.handlers.code.options import OPTIONS, CodeOptions, read_options
from workers.handlers.code.problem import Problem
from workers.handlers.graded_by import graded_by
from workers.handlers.reward_service import ServiceGrading
from workers.handlers.submission import submitted
from workers.handlers.task_data import problem_in
from workers.sandbox.base import Sandbox
from workers.sandbox.errors import SandboxFileError
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.tools import Tool, tools_called

SYSTEM = "You write programs in Python 3.{tools} Hidden tests judge the program. {how}"
WITH_TOOLS = " You have tools to try things out, in a working folder of your own."
IN_MESSAGE = "End with the whole program in one fenced block that begins with ```python; only the last such block counts.{finish}"
IN_FILE = "The whole program must be in the file {path} when you are done."
BY_FINISH = " You may hand that message in with the tool `finish`."
READS_AND_PRINTS = "The program reads standard input and prints to standard output, and nothing else."
IS_CALLED = "The program only defines what is asked for: it is imported and called."
STARTS_WITH = "It begins like this:\n\n```python\n{starter}\n```"
SAMPLES = (files("workers.handlers.code.problems") / "programs.jsonl",)
SOLUTION = "solution"
"""Where `trajectory.extra` has the file with the program."""
MAX_PROGRAM_BYTES = 256 * 1024
NO_PROGRAM, TOO_LONG = "no_program", "program_too_long"
OVERRUNS = {"all": 1, "fraction": 8}
"""Tests that may come to their limit of time; what is left is not run then. A loop without end would cost EVAL more than it has."""
TOLD_TESTS = 200
"""Verdicts that are kept one by one with the grade."""


class CodeHandler(AgentHandler):
    """Problems that a program solves; `layouts.py` has how rows are written."""

    name = "code"
    about = "A problem that a Python program solves, run on hidden tests in a sandbox of its own: input and output, calls, or asserts."
    layouts = LAYOUTS
    samples = SAMPLES
    options = OPTIONS

    def __init__(self) -> None:
        self._services = ServiceGrading()

    async def close(self) -> None:
        await self._services.__aexit__(None, None, None)

    def check_options(self, said: Json) -> None:
        super().check_options(said)
        read_options(said)

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        options = _options(spec)
        return SandboxSpec(isolation=Isolation(spec.template.capability), image=options.image) if options.tools else None

    async def init(self, context: StageContext) -> Environment:
        if context.spec.template.reward is not RewardSource.OUTSIDE:
            _problem(context.spec)  # a row that cannot be judged costs no sandbox
        return await super().init(context)

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        options, problem = _options(spec), problem_in(spec.prompt.data, QUESTIONS)
        how = IN_MESSAGE.format(finish=BY_FINISH if "finish" in options.tools else "")
        if options.solution_file:
            how = IN_FILE.format(path=options.solution_file)
        parts = [problem.question]
        if problem.tests.tests:
            parts.append(IS_CALLED if problem.is_called else READS_AND_PRINTS)
        if problem.starter.strip():
            parts.append(STARTS_WITH.format(starter=problem.starter.rstrip()))
        return (
            ChatMessage(role="system", content=SYSTEM.format(tools=WITH_TOOLS if options.tools else "", how=how)),
            ChatMessage(role="user", content="\n\n".join(parts)),
        )

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return () if sandbox is None else tools_called(_options(spec).tools, sandbox)

    async def collect(self, context: RunContext, sandbox: Sandbox, end: AgentEnd) -> Json:
        path = _options(context.spec).solution_file
        return await solution_in(sandbox, path) if path else {}

    async def evaluate(self, context: EvalContext) -> Grade:
        options, problem = _options(context.spec), _problem(context.spec)
        grade = await self._services.grade(self, context, lambda trajectory: _program(trajectory, options))
        if grade is not None:
            return grade
        program = _program(context.trajectory, options)
        if program is None or not program.strip():
            return self._refused(NO_PROGRAM)
        whole = problem.whole(program)
        if len(whole.encode("utf-8", "surrogatepass")) > MAX_PROGRAM_BYTES:
            return self._refused(TOO_LONG)
        verdict = await _graded(context, whole, problem, options)
        reward = verdict.fraction if options.reward == "fraction" else float(verdict.passed)
        return Grade(
            reward=reward,
            components={"fraction": verdict.fraction},
            details=_details(verdict),
            grader=graded_by(self.name),
            seconds=verdict.seconds,
        )

    def _refused(self, why: str) -> Grade:
        details = {"verdict": why, "accepted": 0}
        return Grade(reward=0.0, components={"fraction": 0.0}, details=details, grader=graded_by(self.name))

    def gold(self, spec: JobSpec) -> Trajectory | None:
        solutions = _problem(spec).solutions
        return submitted(fenced(solutions[0]), {SOLUTION: solutions[0]}) if solutions else None


async def solution_in(sandbox: Sandbox, path: str) -> Json:
    """The program that an agent left in a file, as `trajectory.extra` keeps it; why there is none, when there is none."""
    try:
        content = await sandbox.read_file(path, max_bytes=MAX_PROGRAM_BYTES)
    except SandboxFileError as missing:
        return {f"{SOLUTION}_missing": str(missing)}
    return {SOLUTION: content.decode("utf-8", "replace")}


async def _graded(context: EvalContext, program: str, problem: Problem, options: CodeOptions) -> CodeVerdict:
    provider, tests = context.provider(), options.applied(problem.tests)
    asked = Isolation(context.spec.template.capability)
    isolation = Isolation.NONE if asked is Isolation.NONE else Isolation.ISOLATED  # no program under judgement has a network
    at_once = min(tests_at_once(), len(tests.tests))
    spec = SandboxSpec(isolation=isolation, image=options.image, limits=sandbox_limits(tests.limits, at_once))

    async def start() -> Sandbox:
        context.gate()
        return await provider.start(spec, context.owner)

    return await grade_program(
        program,
        tests,
        start,
        at_once=at_once,
        stop_at_failure=options.stop_at_failure,
        most_overruns=OVERRUNS[options.reward],
        has_image=bool(options.image),
    )


def _details(verdict: CodeVerdict) -> dict[str, object]:
    """What a person asks of a grade. Nothing of a test's input or expected output is in it."""
    failed = next(((number, test) for number, test in enumerate(verdict.tests) if test.verdict is not Verdict.ACCEPTED), None)
    told: dict[str, object] = {
        "verdict": verdict.worst.value,
        "accepted": verdict.accepted,
        "tests": len(verdict.tests),
        "verdicts": [test.verdict.value for test in verdict.tests[:TOLD_TESTS]],
        "sandboxes": verdict.sandboxes,
        "slowest_s": max((test.own_s for test in verdict.tests), default=0.0),
    }
    if failed is not None:
        number, test = failed
        told["first_failed"] = number
        told["why"] = _why(test)
    return told


def _why(test: TestVerdict) -> str:
    return test.why.encode("utf-8", "replace").decode()


def _program(trajectory: Trajectory, options: CodeOptions) -> str | None:
    if options.solution_file:
        found = trajectory.extra.get(SOLUTION)
        return found if isinstance(found, str) else None
    return last_program(trajectory.answer)


def _options(spec: JobSpec) -> CodeOptions:
    return read_options(spec.template.options)


def _problem(spec: JobSpec) -> Problem:
    return problem_in(spec.prompt.data, LAYOUTS)
