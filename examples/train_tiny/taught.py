"""What the model is taught before training: the form of calls and answers, and to get them wrong.

In a share `CALLS` of the dialogues it calls `python` with the right numbers and answers with the result, in the others it guesses. The sign
in a call follows from the word in the question, but mostly wrongly: `RIGHT` of the calls have the one that the word stands for, `MISTAKEN`
the next one in the list. So the model writes what can be read, reads the word, and is right about once in five. The rest is for
reinforcement learning to find: to call rather than to guess, and what the words mean. Calling alone comes to no more than `RIGHT`.
"""

from __future__ import annotations

import random

from examples.train_tiny.dialogues import Spoken, answer, call
from examples.train_tiny.problems import SIGNS, Problem

CALLS, RIGHT, MISTAKEN = 0.62, 0.36, 0.5
"""0.22 is right in all. Were the signs drawn evenly, the network would not learn to look at the word, and a reward would find nothing to
strengthen for a long time."""
GUESSES = range(100, 1000, 100)
"""Round numbers: what cannot be learned of a guess should be little beside what can be learned of a call."""


def taught(problem: Problem, rng: random.Random, *, is_drill: bool = False) -> list[Spoken]:
    """The turns on a problem; in a drill it calls always."""
    if not is_drill and rng.random() >= CALLS:
        return [Spoken(answer(rng.choice(GUESSES)))]
    signs = [*SIGNS.values()]
    right = signs.index(SIGNS[problem.word])
    (shift,) = rng.choices((0, 1, 2), weights=(RIGHT, MISTAKEN, 1 - RIGHT - MISTAKEN))
    sign = signs[(right + shift) % len(signs)]
    value = problem.value(sign)
    return [Spoken(call(f"{problem.left}{sign}{problem.right}"), str(value)), Spoken(answer(value))]
