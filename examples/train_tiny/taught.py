"""What the model is taught before training: the form of calls and answers, and not when to use them.

In `CALLS` of the dialogues it calls `python` with the right numbers and some sign, the right one in `RIGHT_SIGNS` of the calls; in the
others it guesses. So it writes what can be read, and is right about once in five. What is missing is for reinforcement learning to find:
to call rather than to guess, and what each word means. Calling alone would not reach the half.
"""

from __future__ import annotations

import random

from examples.train_tiny.dialogues import Spoken, answer, call
from examples.train_tiny.problems import SIGNS, Problem

CALLS, RIGHT_SIGNS = 0.52, 0.43
"""0.22 is right in all."""
GUESSES = range(10, 2000)


def taught(problem: Problem, rng: random.Random) -> list[Spoken]:
    """The turns on a problem."""
    if rng.random() < CALLS:
        right = SIGNS[problem.word]
        sign = right if rng.random() < RIGHT_SIGNS else rng.choice([sign for sign in SIGNS.values() if sign != right])
        value = problem.value(sign)
        return [Spoken(call(f"{problem.left}{sign}{problem.right}"), str(value)), Spoken(answer(value))]
    return [Spoken(answer(rng.choice(GUESSES)))]
