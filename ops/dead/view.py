"""Dead letters on a terminal and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ops.dead.letters import DeadLetter
from ops.visible_text import visible_line
from pipeline.messages import Json


def as_map(letter: DeadLetter) -> Json:
    """One letter as values."""
    return {**asdict(letter), "kind": letter.kind, "at_ms": letter.at_ms}


def tables(letters: Sequence[DeadLetter]) -> Group:
    """How many died of what; then a line a letter."""
    kinds = Table(box=None, pad_edge=False)
    for name in ("jobs", "died of", "newest"):
        kinds.add_column(name, justify="right" if name == "jobs" else "left", overflow="fold")
    newest = {letter.kind: letter for letter in reversed(letters)}
    for kind, count in Counter(letter.kind for letter in letters).most_common():
        kinds.add_row(str(count), Text(visible_line(kind)), _when(newest[kind]))
    lines = [
        Text(f"{_when(letter)}  {letter.job or letter.entry}  {letter.stage.upper()}  {visible_line(letter.why)[:300]}")
        for letter in letters
    ]
    return Group(kinds, Text(""), *lines)


def as_lines(letter: DeadLetter) -> Iterator[str]:
    """One letter whole."""
    yield f"job       {letter.job or '(an entry that no worker could read)'}"
    yield f"died      {_when(letter)} UTC in {letter.stage.upper() or '?'}, attempt {letter.attempt}"
    yield f"spent     {letter.failed} failures, {letter.lost} losses"
    yield f"why       {visible_line(letter.why)}"
    if letter.raw:
        yield f"held      {visible_line(letter.raw)}"
    yield f"entry     {letter.entry} of shard {letter.shard}"
    if letter.job:
        yield f"next      rollstream job show {letter.job} · rollstream dead replay {letter.job} · rollstream dead drop {letter.job}"


def _when(letter: DeadLetter) -> str:
    return datetime.fromtimestamp(letter.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
