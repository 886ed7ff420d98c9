"""Makes puzzles and scores answers, in scoring processes with limits on time and memory.

Who broke it: a scorer that overran, died, raised, or gave no number from 0 to 1 is asked for the puzzle's reference, or for a dash where
there is none. If that works, the answer did it and scores 0; if not, the scorer is broken: `GraderError`, and never a 0.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from workers.graders.errors import GraderError
from workers.graders.killable import CallCrashed, CallTimedOut, ChildNotStarted, KillablePool
from workers.graders.reasoning_gym.puzzle import BadPuzzle, Puzzle

NAME = "reasoning_gym"
PACKAGE = "reasoning_gym"
MAX_ANSWER_CHARS = 20_000
_CHILD = "workers.graders.reasoning_gym.child"
_VARIABLES = {"PYTHONHASHSEED": "0"}
"""Some data sets choose by the order of a set."""
_ONCE_LIMIT_S = 60.0
_ROOT = Path(__file__).resolve().parents[3]

Asked = Literal["make", "score", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A puzzle that was made."""

    question: str
    reference: str | None
    """A right answer; None where the package holds none."""
    digest: str
    """`puzzle.digest_of` its entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PuzzleVerdict:
    """The score of one answer."""

    score: float
    """From 0 to 1, as the package gives it."""
    reason: str
    """`scored`; `scorer_raised`, `answer_killed_grader`, `no_score`: the answer broke the scorer; `long`: it was not given to it."""
    digest: str
    """Of the entry that it was scored by; empty when the answer broke the scorer, or was not given to it."""
    seconds: float


class PuzzleGrader:
    """An async context manager that owns its processes; they start with the first puzzle.

    Args:
        processes: scoring processes at most.
        limit_s: processor time for making a puzzle and scoring one answer; by the clock `killable.WALL_PER_CPU` times as long.
        memory_bytes: what a process may allocate beyond its imports.
    """

    def __init__(self, *, processes: int = 2, limit_s: float = 10.0, memory_bytes: int = 512 << 20) -> None:
        self._limit_s = limit_s
        self._pool = KillablePool(_CHILD, processes=processes, memory_bytes=memory_bytes, variables=_VARIABLES)

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._pool.__aexit__(kind, error, trace)

    @property
    def working(self) -> frozenset[int]:
        """The processes that make or score something now."""
        return self._pool.working

    async def make(self, puzzle: Puzzle) -> Made:
        """The puzzle, made.

        Raises:
            BadPuzzle: it cannot be; making it takes too long or too much, too.
            GraderError: no process came up.
        """
        try:
            return _made(await self._ask("make", puzzle))
        except (CallTimedOut, CallCrashed) as broken:
            raise BadPuzzle(f"making it broke off: {broken}") from broken

    async def score(self, puzzle: Puzzle, answer: str) -> PuzzleVerdict:
        """The score of an answer that is not empty.

        Raises:
            BadPuzzle: the puzzle cannot be made.
            GraderError: the scorer broke, and the answer is not to blame.
        """
        started = time.perf_counter()
        digest = ""
        if len(answer) > MAX_ANSWER_CHARS:
            return PuzzleVerdict(score=0.0, reason="long", digest=digest, seconds=0.0)
        try:
            reply = await self._ask("score", puzzle, answer)
        except (CallTimedOut, CallCrashed):
            reason, score = "answer_killed_grader", 0.0
        else:
            reason, score = _reason(reply), float(reply.get("score", 0.0))
            digest = str(reply.get("digest", ""))
        if reason != "scored":
            await self.score_reference(puzzle)
            score = 0.0
        return PuzzleVerdict(score=score, reason=reason, digest=digest, seconds=time.perf_counter() - started)

    async def score_reference(self, puzzle: Puzzle) -> PuzzleVerdict:
        """The score of the puzzle's own answer, or of a dash where it has none.

        Raises:
            BadPuzzle: the puzzle cannot be made.
            GraderError: it is not scored, or the reference not as right.
        """
        started = time.perf_counter()
        try:
            reply = await self._ask("reference", puzzle)
        except (CallTimedOut, CallCrashed) as broken:
            raise GraderError(f"the scorer of {puzzle.dataset} breaks on its own answer: {broken}", grader=NAME) from broken
        if _reason(reply) != "scored" or (reply["reference"] and reply["score"] != 1.0):
            raise GraderError(f"the scorer of {puzzle.dataset} says of its own answer: {json.dumps(reply)[:300]}", grader=NAME)
        return PuzzleVerdict(
            score=float(reply["score"]), reason="scored", digest=str(reply["digest"]), seconds=time.perf_counter() - started
        )

    async def _ask(self, do: Asked, puzzle: Puzzle, answer: str = "") -> dict[str, Any]:
        try:
            reply = await self._pool.call({"do": do, "answer": answer, **puzzle.to_map()}, limit_s=self._limit_s)
        except ChildNotStarted as broken:
            raise GraderError(str(broken), grader=NAME) from broken
        if "bad" in reply:
            raise BadPuzzle(f"{puzzle.dataset}: {reply['bad']}")
        if do == "make" and "error" in reply:
            raise BadPuzzle(f"{puzzle.dataset}: {reply['error']}: {reply['message']}")
        return reply


def is_installed(package: str = PACKAGE) -> bool:
    """Whether a package is there, without importing it."""
    return find_spec(package) is not None


def made_now(puzzle: Puzzle) -> Made:
    """The puzzle, made in a process of its own while the caller waits: for commands, never on an event loop of a worker.

    Raises:
        BadPuzzle: it cannot be made.
        GraderError: the process did not come up.
    """
    request = json.dumps({"do": "make", **puzzle.to_map()})
    environment = {**os.environ, **_VARIABLES, "PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", _CHILD, "--once"],
            input=request.encode(),
            capture_output=True,
            timeout=_ONCE_LIMIT_S,
            env=environment,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise BadPuzzle(f"{puzzle.dataset}: not made within {_ONCE_LIMIT_S:g} s") from late
    if ended.returncode != 0:
        raise GraderError(ended.stderr.decode(errors="replace").strip()[-300:], grader=NAME)
    reply = json.loads(ended.stdout)
    if "bad" in reply:
        raise BadPuzzle(f"{puzzle.dataset}: {reply['bad']}")
    return _made(reply)


def _made(reply: dict[str, Any]) -> Made:
    return Made(question=reply["question"], reference=reply["reference"], digest=reply["digest"])


def _reason(reply: dict[str, Any]) -> str:
    if "error" in reply:
        return "answer_killed_grader" if reply["error"] == "MemoryError" else "scorer_raised"
    score = reply["score"]
    return "scored" if math.isfinite(score) and 0.0 <= score <= 1.0 else "no_score"
