"""An answer said in one turn, or with a computation before it; and one like it that is wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from pipeline.messages import JobSpec, Trajectory
from workers.llm.scripted import Act
from workers.llm.scripted.acts import Script
from workers.llm.scripted.speech import altered

BOX = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)
TAGS = re.compile(r"<answer>(.*)</answer>", re.DOTALL)
CHOICE = re.compile(r"[A-Z]")


def answered(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    """The reference said, or an answer like it."""
    return (Act(gold.answer),), ((Act(spoilt(gold.answer, random.Random(spec.prompt.id))),),)


def spoilt(answer: str, rng: random.Random) -> str:
    """An answer that looks like another and is not: another choice, another number, another word."""
    box = BOX.search(answer) or TAGS.search(answer)
    if box is None:
        return altered(answer, rng)
    inner = box[1]
    other = rng.choice([letter for letter in "ABCD" if letter != inner]) if CHOICE.fullmatch(inner) else altered(inner, rng)
    return answer[: box.start(1)] + other + answer[box.end(1) :]
