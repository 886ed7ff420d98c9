"""Puzzles of the package `reasoning-gym`: made, and answers scored, by the package itself in processes that can be killed.

PuzzleGrader    makes puzzles and scores answers
Puzzle          one puzzle: how to make it, or the entry itself
BadPuzzle       it cannot be made
"""

from workers.graders.reasoning_gym.grader import Made, PuzzleGrader, PuzzleVerdict, made_now
from workers.graders.reasoning_gym.puzzle import BadPuzzle, Puzzle, digest_of, reference_of

__all__ = ["BadPuzzle", "Made", "Puzzle", "PuzzleGrader", "PuzzleVerdict", "digest_of", "made_now", "reference_of"]
