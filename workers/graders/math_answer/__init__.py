"""Reading an answer and comparing two of them, with our own reading of LaTeX and plain mathematical text.

Nothing here evaluates text: an answer becomes a small tree, and only this package computes with that tree, inside bounds.
"""

from workers.graders.math_answer.compare import Decision, Tolerance, compare_answers

__all__ = ["Decision", "Tolerance", "compare_answers"]
