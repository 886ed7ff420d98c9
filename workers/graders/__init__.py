"""Graders: from what a policy answered to a verdict. A grader that breaks raises `GraderError`; that is never a reward."""

from workers.graders.boxed import last_boxed
from workers.graders.errors import GraderError
from workers.graders.killable import CallCrashed, CallTimedOut, ChildNotStarted, KillablePool
from workers.graders.math_answer import Tolerance
from workers.graders.math_grader import MathGrader, MathVerdict, VerdictKind

__all__ = [
    "CallCrashed",
    "CallTimedOut",
    "ChildNotStarted",
    "GraderError",
    "KillablePool",
    "MathGrader",
    "MathVerdict",
    "Tolerance",
    "VerdictKind",
    "last_boxed",
]
