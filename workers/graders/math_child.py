"""What a grader process does: compare two answers with our own rules, then with computer algebra.

Run by the pool as `python -m workers.graders.math_child`. Only here are sympy and its LaTeX reader imported.
"""

from __future__ import annotations

import logging
from typing import Any

import math_verify
import sympy

from workers.graders.killable_child import serve
from workers.graders.math_answer import Tolerance, compare_answers

_DIGITS = 60
_ROUNDED_TO = 30
"""Computer algebra compares numbers to this many decimals: far beyond any rounding, so a rounded value is not taken for an exact one."""
_LATEX = (math_verify.LatexExtractionConfig(),)


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request: `own` asks for our rules first, `gold` and `answer` are texts without their boxes."""
    gold, answer = str(request["gold"]), str(request["answer"])
    if request["own"]:
        decision = compare_answers(gold, answer, Tolerance(**request["tolerance"]))
        if decision.verdict != "undecided":
            return {"verdict": decision.verdict, "reason": decision.reason}
    expected = _read(gold)
    if not expected:
        return {"verdict": "different", "reason": "reference_not_read"}
    found = _read(answer)
    if not found:
        return {"verdict": "unreadable", "reason": "not_read"}
    same = math_verify.verify(
        expected,
        found,
        strict=True,
        float_rounding=_ROUNDED_TO,
        numeric_precision=_DIGITS,
        allow_set_relation_comp=True,
        timeout_seconds=None,
        raise_on_error=True,
    )
    return {"verdict": "same" if same else "different", "reason": "algebra"}


def _read(text: str) -> list[Any]:
    """The expressions of a formula; empty when it is none. Limits on time are the pool's: the library's own do not hold."""
    formula = text.replace("$", " ").strip()
    return list(math_verify.parse(f"${formula}$", _LATEX, fallback_mode="no_fallback", parsing_timeout=None))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    judge({"gold": r"\int_0^1 x\,dx", "answer": r"\frac{1}{2}", "own": False})  # the first call builds the grammar's tables
    sympy.simplify(sympy.Symbol("x") + 0)
    serve(judge)
