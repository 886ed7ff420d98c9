r"""The task `math`: several turns, the tool `python`, a final answer in `\boxed{}`, graded here.

Options of the job template (`options`):

    tools       true (default): the model has `python`; false: it thinks on its own
    abs_tol     leeway for numbers, absolute; default 0: strict
    rel_tol     the same, relative
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from pipeline.errors import InvalidRequest
from pipeline.messages import ChatMessage, Grade, JobSpec, StopReason
from workers.graders import MathGrader, Tolerance, VerdictKind
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import EvalContext
from workers.sandbox.base import Sandbox
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.tools import Tool, tools_called

SYSTEM = "You solve mathematical problems. Think step by step. {tools}End with the answer alone in \\boxed{{}}; only the last box counts."
WITH_PYTHON = "You may compute with the tool `python`; its variables stay between calls. "


class MathHandler(AgentHandler):
    """Mathematical problems: `prompt.data` has `question` and `answer`."""

    name = "math"

    def __init__(self) -> None:
        self._grader = MathGrader()

    async def open(self) -> None:
        await self._grader.__aenter__()

    async def close(self) -> None:
        await self._grader.__aexit__(None, None, None)

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        if not _has_tools(spec):
            return None
        return SandboxSpec(isolation=Isolation(spec.template.capability))

    def messages(self, spec: JobSpec) -> Sequence[ChatMessage]:
        system = SYSTEM.format(tools=WITH_PYTHON if _has_tools(spec) else "")
        return (ChatMessage(role="system", content=system), ChatMessage(role="user", content=_text(spec, "question")))

    def tools(self, spec: JobSpec, sandbox: Sandbox | None) -> Sequence[Tool]:
        return () if sandbox is None else tools_called(("python",), sandbox)

    async def evaluate(self, context: EvalContext) -> Grade:
        verdict = await self._grader.grade(context.trajectory.answer, _text(context.spec, "answer"), tolerance=_tolerance(context.spec))
        details: dict[str, object] = {"verdict": verdict.kind.value, "extracted": verdict.extracted, "reason": verdict.reason}
        if verdict.reason == "answer_killed_grader":
            details["stop"] = StopReason.GRADER_BROKEN.value
        return Grade(
            reward=1.0 if verdict.correct else 0.0,
            components={"boxed": 0.0 if verdict.kind is VerdictKind.UNPARSEABLE else 1.0},
            details=details,
            grader=f"math/{_version()}",
            seconds=verdict.seconds,
        )


def _has_tools(spec: JobSpec) -> bool:
    return spec.template.options.get("tools", True) is not False


def _text(spec: JobSpec, field: str) -> str:
    value = spec.prompt.data.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"expected a text, got {value!r}", field=f"prompt.{field}")
    return value


def _tolerance(spec: JobSpec) -> Tolerance:
    found = {name: spec.template.options.get(name, 0.0) for name in ("abs_tol", "rel_tol")}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise InvalidRequest(f"expected a number from 0 to below 1, got {value!r}", field=f"options.{name}")
    return Tolerance(
        absolute=float(str(found["abs_tol"])), relative=float(str(found["rel_tol"])), worked_out=spec.prompt.data.get("worked_out") is True
    )


def _version() -> str:
    try:
        return version("rollstream")
    except PackageNotFoundError:
        return "source"
