"""1,000 verdicts of the mathematical grader with a warm pool, and what answers cost that are made to break it.

The answers are those of the shipped problems: a third right, in a box; a third wrong; a third without a box that
closes. One in ten is a pair that our rules leave to computer algebra, in a grader process. Every verdict is checked. Then three poisonous
answers, one after the other, and verdicts on plain answers while the third one computes.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence

from ops.bench.report import Report
from workers.graders import MathGrader
from workers.graders.killable import WALL_PER_CPU
from workers.handlers.math.handler import SAMPLES
from workers.handlers.math.layouts import LAYOUTS
from workers.handlers.task_data import load_rows, problem_in

VERDICTS = 1_000
AT_ONCE = 4
"""As the default slots of an EVAL worker on two cores."""
PROCESSES = 2
LIMIT_S = 3.0
REPLACED_S = 5.0
"""For a new process in place of the one that was killed, and the check that the reference breaks none."""
BESIDE = 200
ALGEBRA = (
    (r"\int_0^1 x\,dx", r"\frac12", True),
    (r"\int_0^2 x\,dx", r"\frac12", False),
    (r"\sum_{k=1}^{10} k^2", "385", True),
    (r"\sum_{k=1}^{10} k^2", "384", False),
    (r"\lim_{x\to 0}\frac{\sin x}{x}", "1", True),
    (r"\prod_{k=1}^{5} k", "120", True),
)
"""Answer, reference, and whether they are the same."""
OTHERS = ("123456.75", r"\frac{1234567}{89}", r"\sqrt{1234567}", "(7, 1234567)", "1234567x + 1", r"\{1234567\}")
"""What none of the references is."""
POISON = {
    "tower": r"\boxed{9^9^9^9^9}",
    "nesting": r"\boxed{" + r"\frac{1}{1+" * 300 + "1" + "}" * 300 + "}",
    "endless": r"\boxed{\sum_{k=1}^{99999999999} k^{99999}}",
}
Pair = tuple[str, str, bool]


def run(say: Callable[[str], None]) -> Report:
    """Grades them."""
    return asyncio.run(_measured(say))


async def _measured(say: Callable[[str], None]) -> Report:
    pairs = pairs_of(VERDICTS)
    async with MathGrader(processes=PROCESSES, limit_s=LIMIT_S) as grader:
        await grader.warm()
        say(f"{VERDICTS:,} verdicts, {AT_ONCE} at once, {PROCESSES} grader processes")
        took_s, each_s = await graded(grader, pairs)
        say("poisonous answers")
        poison_s = {name: await _poisoned(grader, answer) for name, answer in POISON.items()}
        beside_s = await _beside_poison(grader)
    metrics = {
        "verdicts_s": took_s,
        "verdict_p50_ms": statistics.median(each_s) * 1000,
        "verdict_p99_ms": statistics.quantiles(each_s, n=100)[98] * 1000,
        **{f"poison_{name}_s": seconds for name, seconds in poison_s.items()},
        "beside_poison_p99_ms": statistics.quantiles(beside_s, n=100)[98] * 1000,
    }
    most_s = LIMIT_S * WALL_PER_CPU + REPLACED_S
    bounds = {"verdicts_s": ("<=", 10.0), **{f"poison_{name}_s": ("<=", most_s) for name in POISON}}
    return Report(name="graders", metrics=metrics, bounds=bounds)


def pairs_of(count: int) -> list[Pair]:
    """Responses with their references and what is true of them, the same every time."""
    rng = random.Random(6)
    references = [answer for sample in SAMPLES for row in load_rows(sample, LAYOUTS).rows for answer in problem_in(row, LAYOUTS).answers]
    pairs: list[Pair] = []
    for number in range(count):
        if number % 10 == 0:
            answer, reference, same = ALGEBRA[number // 10 % len(ALGEBRA)]
            pairs.append((rf"So it is \boxed{{{answer}}}.", reference, same))
            continue
        reference = rng.choice(references)
        if number % 3 == 0:
            pairs.append((rf"First I see that {reference} may be. \boxed{{{reference}}}", reference, True))
        elif number % 3 == 1:
            pairs.append((rf"\boxed{{{rng.choice(OTHERS)}}}", reference, False))
        else:
            pairs.append((rf"Therefore \boxed{{{reference}", reference, False))
    rng.shuffle(pairs)
    return pairs


async def graded(grader: MathGrader, pairs: Sequence[Pair]) -> tuple[float, list[float]]:
    """Grades all; seconds together, and of each.

    Raises:
        ValueError: a verdict is wrong; names the pair.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(response: str, reference: str, same: bool) -> float:
        async with slots:
            verdict = await grader.grade(response, reference)
        if verdict.correct != same:
            raise ValueError(f"{response!r} against {reference!r}: expected {same}, got {verdict}")
        return verdict.seconds

    started = time.perf_counter()
    each_s = await asyncio.gather(*(one(*pair) for pair in pairs))
    return time.perf_counter() - started, each_s


async def _poisoned(grader: MathGrader, response: str) -> float:
    verdict = await grader.grade(response, "1")
    if verdict.correct:
        raise ValueError(f"{response[:80]!r} scored")
    return verdict.seconds


async def _beside_poison(grader: MathGrader) -> list[float]:
    """Seconds of verdicts on plain answers, for as long as a poisonous one computes."""
    poisoned = asyncio.create_task(_poisoned(grader, POISON["endless"]))
    seconds: list[float] = []
    while len(seconds) < BESIDE or not poisoned.done():
        seconds.append((await grader.grade(r"\boxed{\frac{2}{4}}", r"\frac12")).seconds)
        await asyncio.sleep(0)
    await poisoned
    return seconds
