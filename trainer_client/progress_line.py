"""How a step comes along, for people: one line that is written over on a terminal, and a line a minute elsewhere.

    step 12   41/64 groups   12 filtered (23 %)   212/512 rollouts   5.1 groups/min   3,410 tokens/s   4:31 left   waits 2:04
    step 12   0/64 groups   waits 1:10   No worker of stage RUN is alive, and 64 jobs wait there: start one (rollstream worker run ...)

All of it is what the client has read anyway; only when nothing has come for a while is Redis asked why.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

from pipeline.causes import Reason
from pipeline.keys import validation_serial
from pipeline.supervisor.actions import Verdict
from trainer_client.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PAINT_EVERY_S, LOG_EVERY_S = 0.5, 60.0
STALLED_S = 15.0
"""Without a new result for so long one wants to know why."""
WINDOW = 64
"""Looks at which something had come that rates are taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """What is known of a step that is awaited."""

    index: int
    target: int
    joined: int
    """Informative groups that are accounted to it."""
    filtered: int
    ended: int
    """Members that ended, of all groups accounted to it and of those that are open."""
    waited_s: float
    groups_per_s: float = 0.0
    """Over the last joins; 0 = not known yet."""
    tokens_per_s: float = 0.0
    why: str = ""
    """Why nothing has come for a while."""


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    joined: int
    ended: int
    tokens: int


def line_of(progress: StepProgress) -> str:
    """The line."""
    judged = progress.joined + progress.filtered
    parts = [f"step {progress.index}", f"{progress.joined}/{progress.target} groups"]
    if progress.filtered:
        parts.append(f"{progress.filtered} filtered ({progress.filtered / judged:.0%})".replace("%", " %"))
    if progress.ended:
        parts.append(f"{progress.ended:,} rollouts")
    if progress.why:
        return "   ".join([*parts, f"waits {clock(progress.waited_s)}", progress.why])
    if progress.groups_per_s:
        left_s = max(0, progress.target - progress.joined) / progress.groups_per_s
        parts += [f"{progress.groups_per_s * 60:.1f} groups/min", f"{progress.tokens_per_s:,.0f} tokens/s", f"{clock(left_s)} left"]
    return "   ".join([*parts, f"waits {clock(progress.waited_s)}"])


def clock(seconds: float) -> str:
    """`4:31`, `1:02:09`."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


class ProgressLine:
    """Writes the line while a step is awaited.

    Args:
        inbox: what the client has read.
        out: where it is written.
        stalled_s: without a new result for so long it says why.
    """

    def __init__(self, inbox: Inbox, out: TextIO | None = None, *, stalled_s: float = STALLED_S) -> None:
        self._inbox = inbox
        self._stalled_s = stalled_s
        self._out = out or sys.stderr
        self._looks: deque[_Look] = deque(maxlen=WINDOW)

    @asynccontextmanager
    async def shown(self, index: int, target: int, why: Callable[[], Awaitable[Sequence[Reason]]]) -> AsyncIterator[None]:
        """Shows the line as long as the block runs."""
        task = asyncio.create_task(self._show(index, target, why), name=f"progress of step {index}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._write("")

    async def _show(self, index: int, target: int, why: Callable[[], Awaitable[Sequence[Reason]]]) -> None:
        began_s = time.monotonic()
        self._looks.clear()
        if not self._out.isatty():
            await asyncio.sleep(LOG_EVERY_S)  # a step that comes soon is nothing to log
        while True:
            now_s = time.monotonic()
            progress = self.look(index, target, began_s, now_s)
            if now_s - self._looks[-1].at_s >= self._stalled_s:
                reasons = await why()
                progress = replace(progress, why=str(reasons[0]) if reasons else "")
            self._write(line_of(progress))
            await asyncio.sleep(PAINT_EVERY_S if self._out.isatty() else LOG_EVERY_S)

    def look(self, index: int, target: int, began_s: float, now_s: float) -> StepProgress:
        """What is known now. Rates are over the last looks at which something had come."""
        accounted = self._inbox.accounted_to(index)
        joined = sum(group.verdict is Verdict.INFORMATIVE for group in accounted)
        groups = {group.group for group in accounted}
        jobs = (result.record for result in self._inbox.jobs.values())
        members = [record for record in jobs if record.group in groups or self._is_open(record.group)]
        seen = _Look(now_s, joined, len(members), sum(member.sampled_tokens for member in members))
        if not self._looks or (self._looks[-1].joined, self._looks[-1].ended) != (seen.joined, seen.ended):
            self._looks.append(seen)
        first, last_s = self._looks[0], max(1e-9, now_s - self._looks[0].at_s)
        return StepProgress(
            index=index,
            target=target,
            joined=joined,
            filtered=sum(group.verdict is Verdict.FILTERED for group in accounted),
            ended=len(members),
            waited_s=now_s - began_s,
            groups_per_s=max(0, joined - first.joined) / last_s,
            tokens_per_s=max(0, seen.tokens - first.tokens) / last_s,
        )

    def _is_open(self, group: str) -> bool:
        return bool(group) and group not in self._inbox.groups and validation_serial(group) is None

    def _write(self, line: str) -> None:
        if self._out.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\x1b[2K{line if len(line) <= width else line[: width - 1] + '…'}")
        elif line:
            self._out.write(line + "\n")
        self._out.flush()


__all__ = ["ProgressLine", "StepProgress", "clock", "line_of"]
