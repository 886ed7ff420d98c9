"""An answer said in one turn; one like it, which is wrong nearly always; and none."""

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
GIVEN_UP = "I do not find it."
CHOICE = re.compile(r"[A-Z]")


def answered(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    """The reference said; an answer like it, which some scorers take, too; or that none was found."""
    like = spoilt(gold.answer, random.Random(spec.prompt.id))
    return (Act(gold.answer),), ((Act(like),), (Act(GIVEN_UP),))


def spoilt(answer: str, rng: random.Random) -> str:
    """An answer that looks like another and is not: another choice, another number, another word."""
    place = BOX.search(answer) or TAGS.search(answer)
    if place is None:
        return altered(answer, rng)
    inner = place[1]
    other = rng.choice([letter for letter in "ABCD" if letter != inner]) if CHOICE.fullmatch(inner) else altered(inner, rng)
    return answer[: place.start(1)] + other + answer[place.end(1) :]
