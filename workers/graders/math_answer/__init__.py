"""Reading an answer and comparing two of them, with our own reading of LaTeX and plain mathematical text.

Nothing here evaluates text: an answer becomes a small tree, and only this package computes with that tree, inside bounds.
"""

from workers.graders.math_answer.compare import Decision, compare_answers
from workers.graders.math_answer.equality import STRICT, Tolerance
from workers.graders.math_answer.words import choice_letter, is_not_a_number

__all__ = ["STRICT", "Decision", "Tolerance", "choice_letter", "compare_answers", "is_not_a_number"]
