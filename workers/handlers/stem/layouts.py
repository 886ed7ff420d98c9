"""The rows that the task `stem` reads: our own layout, and those of the field's data sets.

    rollstream  question, answer, and by kind: `options` (a choice, whose answer is one of them), `unit` (a value), `also` (other right
                texts or formulas); rel_tol, abs_tol, digits, unit_needed (a value's leeway); kind, shuffle, id, subject, source, meta
    GPQA        Question, Correct Answer, Incorrect Answer 1 to 3
    MMLU-Pro    question, options, answer_index
    SCP-116K    problem, solution: the answer is what it boxes last, or all of a short one
    verl        prompt (a dialogue), reward_model.ground_truth

Options are shown in an order that hangs on the row's id alone (without one, on its question): the same for all members of a group and in
EVAL, and the right letter is any of them. `shuffle: false` of our own rows keeps the order, for `none of these` at the end.

Rows that do not say their kind are of the first that fits: with options a choice; a number, with a unit that is known or none, a value;
words a text; else a formula. Values of books carry their rounding on the way: what the tolerance is stands in `graders/quantity.py`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from workers.graders import last_boxed
from workers.graders.choice import LETTERS
from workers.graders.math_answer import choice_letter
from workers.graders.quantity import Leeway, reference_of
from workers.graders.short_text import is_chemical
from workers.handlers.stem.problem import Kind, Problem
from workers.handlers.task_data import BadTaskData, Layout, Row, json_of, only_known, text_of

MAX_CHARS = 20_000
MAX_ANSWERS = 32
SHORT_SOLUTION_CHARS = 200
"""A solution of one line up to this long is an answer; a longer one without a box has none that could be compared."""
_FIELDS = frozenset(
    ("id", "kind", "question", "answer", "also", "options", "shuffle", "unit", "rel_tol", "abs_tol", "digits", "unit_needed")
) | {"subject", "source", "meta", "images"}
_WRONG = tuple(f"Incorrect Answer {number}" for number in (1, 2, 3))
_LISTED_OPTION = re.compile(r"(?m)(?:^|\s)\(?([A-E])\s*[).:]\s")
_FORMULA_SIGNS = re.compile(r"[\\=^_{}<>+*/|]")
_A_WORD = re.compile(r"[A-Za-z]{3}")


def _ours(row: Row, place: str) -> Problem:
    only_known(row, _FIELDS, place)
    question = _text(row, "question", place)
    also = row.get("also") or ()
    if not isinstance(also, list | tuple) or len(also) >= MAX_ANSWERS:
        raise BadTaskData(f"{place}: expected a list of at most {MAX_ANSWERS - 1} texts, found {also!r:.80}", field="also")
    answers = (_answer(row.get("answer"), "answer", place), *(_answer(item, "also", place) for item in also))
    unit = "" if row.get("unit") in (None, "") else _text(row, "unit", place)
    kind = _kind(row, answers, unit, place)
    if kind is Kind.CHOICE:
        shuffle = row.get("shuffle", True)
        if not isinstance(shuffle, bool):
            raise BadTaskData(f"{place}: expected true or false, found {shuffle!r:.80}", field="shuffle")
        return _choice(question, _options(row, "options", place), answers[0], place, seed=_seed(row, "id", question) if shuffle else None)
    if kind is Kind.VALUE:
        for answer in answers:
            _check_value(answer, unit, place)
    return Problem(kind=kind, question=question, answers=answers, unit=unit, leeway=_leeway(row, place))


def _kind(row: Row, answers: Sequence[str], unit: str, place: str) -> Kind:
    said = row.get("kind")
    if said is None:
        return Kind.CHOICE if row.get("options") is not None else Kind.VALUE if unit else kind_of(answers[0])
    try:
        return Kind(str(said))
    except ValueError:
        raise BadTaskData(f"{place}: expected {', '.join(Kind)}, found {said!r:.80}", field="kind") from None


def _leeway(row: Row, place: str) -> Leeway:
    for name in ("rel_tol", "abs_tol"):
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf")):
            raise BadTaskData(f"{place}: expected a number from 0, found {value!r:.80}", field=name)
    digits, needed = row.get("digits"), row.get("unit_needed", False)
    if digits is not None and (isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= 30):
        raise BadTaskData(f"{place}: expected 1 to 30, found {digits!r:.80}", field="digits")
    if not isinstance(needed, bool):
        raise BadTaskData(f"{place}: expected true or false, found {needed!r:.80}", field="unit_needed")
    relative, absolute = row.get("rel_tol"), row.get("abs_tol")
    return Leeway(
        relative=float(relative) if isinstance(relative, int | float) else None,
        absolute=float(absolute) if isinstance(absolute, int | float) else None,
        digits=digits if isinstance(digits, int) else None,
        unit_needed=needed,
    )


def _gpqa(row: Row, place: str) -> Problem:
    question, right = _text(row, "Question", place), _text(row, "Correct Answer", place)
    options = [right, *(_text(row, name, place) for name in _WRONG)]
    return _choice(question, options, right, place, seed=_seed(row, "Record ID", question))


def _mmlu_pro(row: Row, place: str) -> Problem:
    question, options, index = _text(row, "question", place), _options(row, "options", place), row.get("answer_index")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(options):
        raise BadTaskData(f"{place}: expected the place of an option, found {index!r:.80}", field="answer_index")
    return _choice(question, options, options[index], place, seed=_seed(row, "question_id", question))


def _scp(row: Row, place: str) -> Problem:
    solution = _text(row, "solution", place)
    answer = last_boxed(solution) or solution
    if answer is solution and (len(solution) > SHORT_SOLUTION_CHARS or "\n" in solution):
        raise BadTaskData(f"{place}: the solution boxes no answer and is too long to be one: {len(solution)} characters", field="solution")
    return _inferred(_text(row, "problem", place), answer.strip())


def _verl(row: Row, place: str) -> Problem:
    dialogue, reward = json_of(row, "prompt", place), json_of(row, "reward_model", place)
    asked = [turn.get("content") for turn in dialogue if isinstance(turn, Mapping)] if isinstance(dialogue, list | tuple) else []
    if not asked or not isinstance(asked[-1], str) or not asked[-1].strip():
        raise BadTaskData(f"{place}: expected a dialogue that ends with a text, found {dialogue!r:.80}", field="prompt")
    if not isinstance(reward, Mapping):
        raise BadTaskData(f"{place}: expected a map with ground_truth, found {reward!r:.80}", field="reward_model")
    answer = _answer(reward.get("ground_truth"), "reward_model.ground_truth", place)
    return _inferred(asked[-1].strip(), last_boxed(answer) or answer)


def _inferred(question: str, answer: str) -> Problem:
    """A problem of an answer that does not say what it is."""
    letter = choice_letter(answer)
    listed = {found.group(1) for found in _LISTED_OPTION.finditer(question)}
    if letter is not None and letter in listed and len(listed) > 1:
        return Problem(kind=Kind.CHOICE, question=question, answers=(letter,), right=LETTERS.index(letter))
    return Problem(kind=kind_of(answer), question=question, answers=(answer,))


def kind_of(answer: str) -> Kind:
    """What an answer is that is no choice."""
    try:
        reference_of(answer)
    except ValueError:
        is_words = _A_WORD.search(answer) is not None and _FORMULA_SIGNS.search(answer) is None
        return Kind.TEXT if is_words or is_chemical(answer) else Kind.FORMULA
    return Kind.VALUE


def _choice(question: str, options: Sequence[str], right: str, place: str, *, seed: str | None) -> Problem:
    """A choice, its options in the order of `seed`; without one as they stand.

    Raises:
        BadTaskData: the right one is not there, or twice.
    """
    if not 2 <= len(options) <= len(LETTERS):
        raise BadTaskData(f"{place}: expected 2 to {len(LETTERS)} options, found {len(options)}", field="options")
    if options.count(right) != 1:
        raise BadTaskData(
            f"{place}: expected the answer once among the options, found {right!r:.80} {options.count(right)} times", field="options"
        )
    shown = list(options)
    if seed is not None:
        random.Random(seed).shuffle(shown)
    return Problem(kind=Kind.CHOICE, question=question, answers=(right,), options=tuple(shown), right=shown.index(right))


def _seed(row: Row, column: str, question: str) -> str:
    name = row.get(column)
    return blake2b(str(question if name in (None, "") else name).encode(), digest_size=16).hexdigest()


def _options(row: Row, name: str, place: str) -> list[str]:
    value = json_of(row, name, place)
    if not isinstance(value, list | tuple):
        raise BadTaskData(f"{place}: expected a list of texts, found {value!r:.80}", field=name)
    return [_answer(option, name, place).strip() for option in value]


def _check_value(answer: str, unit: str, place: str) -> None:
    try:
        reference_of(answer, unit)
    except ValueError as broken:
        raise BadTaskData(f"{place}: {broken}", field="answer") from broken


def _text(row: Row, name: str, place: str) -> str:
    return text_of(row, name, place, longest=MAX_CHARS).strip()


def _answer(value: object, name: str, place: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    return text_of({name: value}, name, place, longest=MAX_CHARS).strip()


def _without_answer(question: str) -> Callable[[Row, str], Problem]:
    return lambda row, place: Problem(kind=Kind.TEXT, question=_text(row, question, place), answers=())


LAYOUTS: Sequence[Layout[Problem]] = (
    Layout(name="rollstream", columns=frozenset(("question", "answer")), read=_ours, is_meant=lambda row: "answer_index" not in row),
    Layout(name="GPQA", columns=frozenset(("Question", "Correct Answer", *_WRONG)), read=_gpqa, id_column="Record ID"),
    Layout(name="MMLU-Pro", columns=frozenset(("question", "options", "answer_index")), read=_mmlu_pro, id_column="question_id"),
    Layout(name="SCP-116K", columns=frozenset(("problem", "solution")), read=_scp),
    Layout(name="verl", columns=frozenset(("prompt", "reward_model")), read=_verl),
)
QUESTIONS: Sequence[Layout[Problem]] = (
    *LAYOUTS,
    *(Layout(name=f"{name} alone", columns=frozenset((name,)), read=_without_answer(name)) for name in ("question", "problem")),
)
"""What can be asked, though perhaps not judged here: rows whose reward comes from outside need no answer."""
