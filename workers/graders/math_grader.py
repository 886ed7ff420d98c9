r"""The grade of a mathematical answer: what a response boxed last, against the reference.

Our own rules settle nearly every pair in the event loop, in a millisecond or so. What is long goes to a grader process with the same
rules; what they cannot read or decide goes there to computer algebra, under limits on time and memory.

Who broke it: when a process overran or died on an answer, one is asked to compare the reference with itself and with a harmless number. If
that works the answer did the damage and is wrong (`answer_killed_grader`); if not, the grader is broken: `GraderError`, and never a 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from workers.graders.boxed import has_box, last_boxed
from workers.graders.errors import GraderError
from workers.graders.killable import CallCrashed, CallTimedOut, ChildNotStarted, KillablePool
from workers.graders.math_answer import STRICT, Tolerance, compare_answers, is_not_a_number

INLINE_CHARS = 240
"""Reference and answer together, up to which they are compared in the event loop; what is longer could hold the loop up."""
SHOWN_CHARS = 2_000
"""Of the extracted answer, kept in the verdict."""
_CHILD = "workers.graders.math_child"
_HARMLESS = "12345.5"
"""An answer that breaks nothing."""
_KILLED = "answer_killed_grader"


class VerdictKind(StrEnum):
    """What became of an answer; only `correct` scores."""

    CORRECT = "correct"
    """It is the reference answer."""
    WRONG = "wrong"
    """It was read and is another."""
    UNPARSEABLE = "unparseable"
    """There is no closed box, or nothing in it that can be read."""
    TIMEOUT = "timeout"
    """Comparing it took longer than any answer may, while the reference compares well with itself."""
    ERROR = "error"
    """Comparing it killed or broke the grader process, while the reference compares well with itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MathVerdict:
    """The grade of one response."""

    correct: bool
    kind: VerdictKind
    extracted: str | None
    """What was boxed last, cut to `SHOWN_CHARS`; None when there is no closed box."""
    reason: str
    """Which rule decided, a fixed word: for logs and counters."""
    seconds: float
    """Time from call to verdict, waiting for a grader process included."""


class MathGrader:
    """Grades mathematical answers; an async context manager that owns its grader processes.

    The processes start with the first answer that needs one.

    Args:
        processes: grader processes at most.
        limit_s: processor time for one comparison in a process; by the clock it may take `killable.WALL_PER_CPU` times as long.
        memory_bytes: what one comparison may allocate.
    """

    def __init__(self, *, processes: int = 2, limit_s: float = 3.0, memory_bytes: int = 512 << 20) -> None:
        self._limit_s = limit_s
        self._pool = KillablePool(_CHILD, processes=processes, memory_bytes=memory_bytes)

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._pool.__aexit__(kind, error, trace)

    @property
    def pids(self) -> frozenset[int]:
        """The grader processes that are alive now."""
        return self._pool.pids

    @property
    def working(self) -> frozenset[int]:
        """The grader processes that compare something now."""
        return self._pool.working

    async def warm(self) -> None:
        """Starts the grader processes now."""
        await self._pool.warm()

    async def grade(self, response: str, gold: str, *, tolerance: Tolerance = STRICT) -> MathVerdict:
        r"""The verdict on a whole response.

        Args:
            response: the text of the model; its last `\boxed{}` counts.
            gold: the reference answer, with or without a box around it.
            tolerance: leeway the task grants for numbers; the default is strict (see `math_answer.equality`).

        Raises:
            GraderError: the grader could not judge and the answer is not to blame.
        """
        started = time.perf_counter()
        reference = last_boxed(gold) or gold
        if not reference.strip() or is_not_a_number(reference[:SHOWN_CHARS]):
            raise GraderError(f"the reference answer {gold[:80]!r} is no answer", grader="math")
        answer = last_boxed(response)
        if answer is None:
            kind, reason = VerdictKind.UNPARSEABLE, "unclosed_box" if has_box(response) else "no_box"
        else:
            kind, reason = await self._judge(reference, answer, tolerance)
        return MathVerdict(
            correct=kind is VerdictKind.CORRECT,
            kind=kind,
            extracted=None if answer is None else answer.strip()[:SHOWN_CHARS],
            reason=reason,
            seconds=time.perf_counter() - started,
        )

    async def grade_any(self, response: str, golds: Sequence[str], *, tolerance: Tolerance = STRICT) -> MathVerdict:
        """The verdict of the first of some reference answers that the response gives or breaks the grader on, else of the first one.

        Raises:
            GraderError: the response gives none of those that could be compared, and one could not.
        """
        first: MathVerdict | None = None
        broken: GraderError | None = None
        for gold in golds:
            try:
                verdict = await self.grade(response, gold, tolerance=tolerance)
            except GraderError as error:
                broken = broken or error
                continue
            if verdict.correct or verdict.reason == _KILLED:  # what broke one comparison would cost the limit of each
                return verdict
            first = first or verdict
        if broken is not None:
            raise broken
        if first is None:
            raise GraderError("there is no reference answer", grader="math")
        return first

    async def _judge(self, gold: str, answer: str, tolerance: Tolerance) -> tuple[VerdictKind, str]:
        inline = len(gold) + len(answer) <= INLINE_CHARS
        if inline:
            decision = compare_answers(gold, answer, tolerance)
            if decision.verdict != "undecided":
                return _KINDS[decision.verdict], decision.reason
        request = {"gold": gold, "answer": answer, "own": not inline, "tolerance": asdict(tolerance)}
        try:
            reply = await self._pool.call(request, limit_s=self._limit_s)
        except CallTimedOut:
            await self._check_reference(gold, tolerance)
            return VerdictKind.TIMEOUT, _KILLED
        except CallCrashed:
            await self._check_reference(gold, tolerance)
            return VerdictKind.ERROR, _KILLED
        except ChildNotStarted as broken:
            raise GraderError(str(broken), grader="math") from broken
        if "error" in reply:
            await self._check_reference(gold, tolerance)
            return VerdictKind.ERROR, _KILLED
        return _KINDS[reply["verdict"]], str(reply["reason"])

    async def _check_reference(self, gold: str, tolerance: Tolerance) -> None:
        """Passes when the reference can be compared, with itself and with another number.

        Raises:
            GraderError: it cannot, so the answer is not to blame.
        """
        for answer in (gold, _HARMLESS):  # itself, and a plain number: against itself a reference may be compared as text alone
            request: dict[str, Any] = {"gold": gold, "answer": answer, "own": False, "tolerance": asdict(tolerance)}
            try:
                reply = await self._pool.call(request, limit_s=self._limit_s)
            except (CallTimedOut, CallCrashed, ChildNotStarted) as broken:
                raise GraderError(f"the reference {gold[:80]!r} cannot be compared with anything: {broken}", grader="math") from broken
            if "error" in reply or (answer is gold and reply["verdict"] != "same" and reply["reason"] != "reference_not_read"):
                raise GraderError(f"the reference {gold[:80]!r} is not equal to itself: {reply}", grader="math")


_KINDS = {
    "same": VerdictKind.CORRECT,
    "different": VerdictKind.WRONG,
    "unreadable": VerdictKind.UNPARSEABLE,
}
