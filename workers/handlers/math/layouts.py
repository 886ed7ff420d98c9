r"""The rows that the task `math` reads: our own layout, and those of the field's data sets.

    rollstream              question, answer; `also` (other right answers), worked_out, id, source, images, meta (whatever else)
    GSM8K                   question, answer, where the answer follows the last `####` of the worked solution
    DeepScaleR/AIME         problem, answer (also MATH-500 and the other sets that write it so)
    AIME (Problem)          Problem, Answer
    AIME (Question)         Question, Answer
    MATH                    problem, solution: the answer is what the solution boxes last
    verl                    prompt (a dialogue), reward_model.ground_truth: as DAPO-Math and Eurus-2 are written

An answer may be a number, a text or a list of texts: of a list each is right on its own. It may stand in a box. A row whose reward comes
from outside needs none: its question alone is read by `QUESTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workers.graders import last_boxed
from workers.handlers.task_data import BadTaskData, Layout, Row, json_of, only_known, text_of

MAX_CHARS = 20_000
MAX_ANSWERS = 16
"""Right answers of one problem; each is compared in turn."""
_FINAL = "####"
_FIELDS = frozenset(("id", "question", "answer", "also", "source", "worked_out", "meta", "images"))
_BARE_BOX = re.compile(r"\\boxed\s+([^\s${}]+)")
_FRAMED = re.compile(r"\\fbox\s*\{")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem with what is right."""

    question: str
    answers: tuple[str, ...]
    """Reference answers in LaTeX or plain text; each is right on its own. None only of a row of `QUESTIONS`."""
    worked_out: bool = False
    """Whether the answer must be worked out; an expression to be computed does not count (`graders.Tolerance`)."""


def _ours(row: Row, place: str) -> Problem:
    only_known(row, _FIELDS, place)
    worked_out = row.get("worked_out", False)
    if not isinstance(worked_out, bool):
        raise BadTaskData(f"{place}: expected true or false, found {worked_out!r:.80}", field="worked_out")
    also = row.get("also", ())
    if not isinstance(also, list | tuple):
        raise BadTaskData(f"{place}: expected a list of texts, found {also!r:.80}", field="also")
    answers = (*_answers(row["answer"], "answer", place), *(_answer(item, "also", place) for item in also))
    return Problem(question=_question(row, "question", place), answers=answers, worked_out=worked_out)


def _gsm8k(row: Row, place: str) -> Problem:
    _, _, final = text_of(row, "answer", place, longest=MAX_CHARS).rpartition(_FINAL)
    return Problem(question=_question(row, "question", place), answers=(_answer(final.strip(), "answer", place),))


def _is_gsm8k(row: Row) -> bool:
    answer = row.get("answer")
    return isinstance(answer, str) and _FINAL in answer


def _plain(question: str, answer: str) -> Callable[[Row, str], Problem]:
    def read(row: Row, place: str) -> Problem:
        return Problem(question=_question(row, question, place), answers=_answers(row[answer], answer, place))

    return read


def _without_answer(question: str) -> Callable[[Row, str], Problem]:
    return lambda row, place: Problem(question=_question(row, question, place), answers=())


def _math(row: Row, place: str) -> Problem:
    solution = text_of(row, "solution", place, longest=MAX_CHARS)
    answer = last_boxed(_FRAMED.sub(r"\\boxed{", solution))
    if answer is None and (bare := _BARE_BOX.findall(solution)):
        answer = bare[-1]
    if answer is None:
        raise BadTaskData(f"{place}: the solution boxes no answer", field="solution")
    return Problem(question=_question(row, "problem", place), answers=(_answer(answer, "solution", place),))


def _verl(row: Row, place: str) -> Problem:
    dialogue, reward = json_of(row, "prompt", place), json_of(row, "reward_model", place)
    asked = [turn.get("content") for turn in dialogue if isinstance(turn, Mapping)] if isinstance(dialogue, list | tuple) else []
    if not asked or not isinstance(asked[-1], str) or not asked[-1].strip():
        raise BadTaskData(f"{place}: expected a dialogue that ends with a text, found {dialogue!r:.80}", field="prompt")
    if not isinstance(reward, Mapping) or "ground_truth" not in reward:
        raise BadTaskData(f"{place}: expected a map with ground_truth, found {reward!r:.80}", field="reward_model")
    return Problem(question=asked[-1].strip(), answers=_answers(reward["ground_truth"], "reward_model.ground_truth", place))


def _question(row: Row, name: str, place: str) -> str:
    return text_of(row, name, place, longest=MAX_CHARS).strip()


def _answers(value: object, name: str, place: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return (_answer(value, name, place),)
    if not 1 <= len(value) <= MAX_ANSWERS:
        raise BadTaskData(f"{place}: expected 1 to {MAX_ANSWERS} answers, found {len(value)}", field=name)
    return tuple(_answer(item, name, place) for item in value)


def _answer(value: object, name: str, place: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return text_of({name: value}, name, place, longest=MAX_CHARS)


LAYOUTS: Sequence[Layout[Problem]] = (
    Layout(name="rollstream", columns=frozenset(("question", "answer")), read=_ours, is_meant=lambda row: not _is_gsm8k(row)),
    Layout(name="GSM8K", columns=frozenset(("question", "answer")), read=_gsm8k, is_meant=_is_gsm8k),
    Layout(name="DeepScaleR/AIME", columns=frozenset(("problem", "answer")), read=_plain("problem", "answer"), id_column="unique_id"),
    Layout(name="AIME (Problem)", columns=frozenset(("Problem", "Answer")), read=_plain("Problem", "Answer"), id_column="ID"),
    Layout(name="AIME (Question)", columns=frozenset(("Question", "Answer")), read=_plain("Question", "Answer"), id_column="ID"),
    Layout(name="MATH", columns=frozenset(("problem", "solution")), read=_math),
    Layout(name="verl", columns=frozenset(("prompt", "reward_model")), read=_verl),
)

QUESTIONS: Sequence[Layout[Problem]] = (
    *LAYOUTS,
    *(
        Layout(name=f"{name} alone", columns=frozenset((name,)), read=_without_answer(name))
        for name in ("question", "problem", "Question", "Problem")
    ),
)
"""What can be asked, though perhaps not judged here."""
