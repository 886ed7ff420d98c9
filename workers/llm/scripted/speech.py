"""The sentences of the scripted policy, and its ways to write code and to miswrite calls."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

_OPENINGS = (
    "Let me think about what the question asks.",
    "First I write down what is known and what is wanted.",
    "I read the question again and list the numbers.",
    "The question gives some numbers and wants one number back.",
)
_STEPS = (
    "The number {a} stands in the first condition.",
    "With {a} and {b} I can write an equation for the unknown.",
    "Let x be the unknown. Then I solve the equation step by step.",
    "The two conditions are connected by {a}.",
    "If I take {a} and then {b}, the order does not matter.",
    "Now I look at the case of {b}.",
    "Alternatively I can count the complement, but that is longer.",
    "On the other hand, the value must be a whole number here.",
    "Wait, that does not look right. Let me go over it once more.",
    "Hmm, {a} times {b} is not what the problem says.",
    "I check this against every condition.",
    "It remains to look at the other case, which works the same way.",
    "Suppose the value is smaller than {a}. Then the second condition fails.",
    "That agrees with what I expected.",
)
_CLOSINGS = ("So I have a value.", "I can write the answer now.", "This must be the result.", "All the conditions hold for it.")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PROSE = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")
_WHOLE = re.compile(r"-?\d{1,15}")


def numbers_in(text: str) -> list[str]:
    """The numbers that stand in a question; two at least, so that every sentence can be filled."""
    return [*_NUMBER.findall(text)[:12], "2", "3"]


def thought(rng: random.Random, numbers: list[str], n_steps: int) -> Iterator[str]:
    """Sentences of one line of thought."""
    yield rng.choice(_OPENINGS)
    for _ in range(n_steps):
        before = "\n" if rng.random() < 0.2 else " "
        yield before + rng.choice(_STEPS).format(a=rng.choice(numbers), b=rng.choice(numbers))
    yield " " + rng.choice(_CLOSINGS)


def endless(rng: random.Random, numbers: list[str]) -> Iterator[str]:
    """Thought that comes to no end."""
    while True:
        yield from thought(rng, numbers, 6)
        yield "\n\n"


def answer(rng: random.Random, value: str) -> str:
    """A final answer in a box."""
    before = rng.choice(("The answer is ", "Therefore the answer is ", "So the final answer is ", "Hence we obtain ", "Thus "))
    return f"{before}\\boxed{{{value}}}."


def answer_without_box(rng: random.Random, value: str) -> str:
    """A final answer that a grader looking for a box does not find."""
    return rng.choice(
        (f"The answer is {value}.", "I could not find a proof, but the pattern is clear.", f"So it must be {value}, I think.")
    )


def code_for(rng: random.Random, value: str) -> str:
    """Python that prints `value`."""
    if not _WHOLE.fullmatch(value):
        return f"value = {value!r}\nprint(value)"
    whole = int(value)
    first = rng.randrange(-50, 51)
    second = rng.randrange(1, 20)
    match rng.randrange(3):
        case 0:
            return f"total = 0\nfor part in [{first}, {second}, {whole - first - second}]:\n    total += part\nprint(total)"
        case 1:
            return f"a = {whole - first}\nb = {first}\nprint(a + b)"
        case _:
            return f"value, rest = divmod({whole * second}, {second})\nprint(value)"


def code_that_raises(rng: random.Random) -> str:
    """Python that ends in an exception."""
    return rng.choice(
        ("print(reslt)", "value = 12 / 0\nprint(value)", "import numbertools\nprint(numbertools.solve())", 'print(int("twelve"))')
    )


def call(tool: str, argument: str, code: str) -> str:
    """The JSON of a well-formed call."""
    return json.dumps({"name": tool, "arguments": {argument: code}})


def broken_call(rng: random.Random, tool: str, argument: str, code: str) -> str:
    """Something that looks like a call and is not valid JSON."""
    good = call(tool, argument, code)
    match rng.randrange(3):
        case 0:
            return good[:-1]
        case 1:
            return good.replace('"', "'")
        case _:
            return good.replace('": ', '" ', 1)


def altered(value: str, rng: random.Random) -> str:
    """A wrong value that looks like the right one."""
    runs = list(re.finditer(r"\d+", value))
    if not runs:
        letter = value.strip()
        return chr(ord(letter) + 1) if len(letter) == 1 and letter.isalpha() and letter not in "zZ" else f"2 {value}"
    last = runs[-1]
    changed = int(last.group()) + rng.choice((1, 2, 3, 10))
    return value[: last.start()] + str(changed).zfill(len(last.group())) + value[last.end() :]


def plausible_value(tool_result: str) -> str | None:
    """The value that a tool printed: its last line when that looks like one."""
    lines = [line.strip() for line in tool_result.splitlines() if line.strip()]
    if not lines or len(lines[-1]) > 80 or _PROSE.search(lines[-1]):
        return None
    return lines[-1].strip("'\"")
