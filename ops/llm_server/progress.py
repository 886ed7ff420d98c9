"""How far the start of a vLLM server is, read off its log."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

Say = Callable[[str], None]
"""Tells a person a line."""

_MILESTONES: tuple[tuple[str, str], ...] = (
    (r"Resolved architecture: (\w+)", r"reading the model: \1"),
    (r"Initializing a V1 LLM engine", "starting the engine"),
    (r"Starting to load model", "loading weights"),
    (r"checkpoint shards: +(\d+)% Completed", r"loading weights: \1 %"),
    (r"(?:Loading weights|Model loading) took", "weights loaded"),
    (r"Compiling a graph|Dynamo bytecode transform|torch\.compile takes", "compiling"),
    (r"Capturing CUDA graph", "capturing CUDA graphs"),
    (r"KV cache size: ([\d,]+) tokens", r"cache for \1 tokens made"),
    (r"Starting vLLM (?:API )?server", "opening the address"),
)


class Progress:
    """Milestones of a start, read off the server's log as it grows.

    Args:
        started_s: by the monotonic clock.
    """

    def __init__(self, log: Path, say: Say, *, started_s: float) -> None:
        self._log = log
        self._say = say
        self._started_s = started_s
        self._read = 0
        self._last = ""

    def look(self) -> None:
        """Tell the newest milestone that has come since the last look."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            if found := milestone(new.decode("utf-8", "replace")):
                self.say(found)

    def say(self, text: str) -> None:
        """Tell it, once, with the seconds since the start."""
        if text != self._last:
            self._last = text
            self._say(f"  {time.monotonic() - self._started_s:4.0f} s  {text}")


def milestone(log: str) -> str:
    """The last milestone in a piece of a log; empty when there is none."""
    found: tuple[int, str] = (-1, "")
    for pattern, text in _MILESTONES:
        for match in re.finditer(pattern, log):
            if match.start() > found[0]:
                found = (match.start(), match.expand(text))
    return found[1]
