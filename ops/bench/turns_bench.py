"""What a turn costs a worker in CPU, at contexts of four lengths, beside what it costs an agent whose tokens a proxy captures."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp

from ops.bench.report import Report
from ops.bench.turns_agent import SAMPLED, BenchDialogue
from ops.bench.turns_proxy import CaptureProxy, hold_by_proxy
from ops.child_processes import ChildProcesses
from pipeline.event_loop import run_process
from workers.llm import HttpBackend, connect_backend
from workers.llm.tokenizer import load

Held = TypeVar("Held")
CONTEXTS = (1_000, 4_000, 16_000, 64_000)
COMPARED_AT = 4_000
MOST_CONTEXT = 131_072
TURNS = 8
"""Of a dialogue."""
AT_ONCE = 4
"""Dialogues held at the same time, as the slots of a worker do: alone, a process waits with cold caches for each answer."""
ROUNDS = 30
"""Of all kinds in turn, so that what disturbs the machine disturbs all alike."""
LONG_EACH = 3
"""Contexts above `COMPARED_AT` are held in one of so many rounds: most of their time is the server's."""
START_TIMEOUT_S = 60.0
BOUNDS = {"turn_4k_ms": ("<=", 1.0), "growth_16k_to_64k_ratio": ("<=", 4.0)}
"""Four times the context may cost at most four times as much: what does not grow with it keeps the figure below that."""


@dataclass
class Figures:
    """CPU milliseconds a turn, one figure a round. What else the machine does only adds to them, so the least is nearest to the truth."""

    ours: dict[int, list[float]] = field(default_factory=dict)
    """By context."""
    proxy: list[float] = field(default_factory=list)
    """At `COMPARED_AT`."""


def run(say: Callable[[str], None]) -> Report:
    """The least over the rounds, and medians; a quarter of a minute on a quiet machine."""
    return report_of(run_process(measure(say, CONTEXTS, ROUNDS)))


async def measure(say: Callable[[str], None], contexts: tuple[int, ...], rounds: int) -> Figures:
    """The figures of all rounds, after one that is not counted."""
    tokenizer = load()
    dialogues = {context: BenchDialogue(tokenizer, context=context, turns=TURNS) for context in contexts}
    figures = Figures({context: [] for context in contexts})
    with tempfile.TemporaryDirectory(prefix="turns-") as folder, ChildProcesses(Path(folder), dict(os.environ)) as children:
        socket = Path(folder) / "model.sock"
        children.start("model", "workers.llm.scripted", "--socket", str(socket), "--max-model-len", str(MOST_CONTEXT))
        proxy = CaptureProxy(str(socket), dialogues[COMPARED_AT].renderer)
        async with connect_backend(f"unix:{socket}") as backend, proxy.serve() as url, aiohttp.ClientSession() as session:
            await _until_there(backend, children)
            for number in range(rounds + 1):
                if not number % LONG_EACH:
                    say(f"round {number} of {rounds}: contexts of {', '.join(f'{context:,}' for context in contexts)} tokens and the proxy")
                for context, dialogue in dialogues.items():
                    if context > COMPARED_AT and number % LONG_EACH:
                        continue
                    cpu_ms, records = await _a_turn(lambda dialogue=dialogue: dialogue.hold(backend))  # type: ignore[misc]  # bound at once
                    for record in records:
                        _check(len(record.turns), record.sampled_tokens)
                    figures.ours[context] += [cpu_ms] * (number > 0)
                proxy.captured.clear()
                cpu_ms, _ = await _a_turn(lambda: hold_by_proxy(dialogues[COMPARED_AT], session, url))
                _check(len(proxy.captured) // AT_ONCE, sum(len(ids) for _, ids, _ in proxy.captured) // AT_ONCE)
                figures.proxy += [cpu_ms] * (number > 0)
    return figures


async def _a_turn(hold: Callable[[], Awaitable[Held]]) -> tuple[float, list[Held]]:
    """CPU milliseconds of this process a turn, and what the dialogues gave."""
    started = time.process_time()
    held = await asyncio.gather(*(hold() for _ in range(AT_ONCE)))
    return (time.process_time() - started) * 1000 / (TURNS * AT_ONCE), held


def _check(turns: int, sampled: int) -> None:
    """A dialogue that ended early would look cheap."""
    if (turns, sampled) != (TURNS, TURNS * SAMPLED):
        raise RuntimeError(f"expected {TURNS} turns of {SAMPLED} tokens each, got {turns} with {sampled} tokens in all")


async def _until_there(backend: HttpBackend, children: ChildProcesses) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while not (await backend.control.health()).alive:
            children.check()
            await asyncio.sleep(0.05)
    await backend.probe()


def report_of(figures: Figures) -> Report:
    """The least figures and what they are to each other; the medians of what is compared."""
    ours, proxy = {context: min(values) for context, values in figures.ours.items()}, min(figures.proxy)
    metrics = {f"turn_{context // 1000}k_ms": ms for context, ms in ours.items()}
    metrics["growth_16k_to_64k_ratio"] = ours[64_000] / ours[16_000]
    metrics["proxy_turn_4k_ms"] = proxy
    metrics["proxy_to_ours_ratio"] = proxy / ours[COMPARED_AT]
    metrics["median_turn_4k_ms"] = statistics.median(figures.ours[COMPARED_AT])
    metrics["median_proxy_turn_4k_ms"] = statistics.median(figures.proxy)
    return Report(name="turns", metrics=metrics, bounds=BOUNDS)
