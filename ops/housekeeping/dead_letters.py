"""The job `dead-letters`: what died on a day and why, as a file a day in the state folder.

The report of a day is computed whole from `s:dead` and replaces the one before, so a second run, or two at once, change nothing. Today's
and yesterday's are written: a day is complete only after it is over.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import orjson

from ops.housekeeping.places import Found, Workplace, leaving_room
from ops.visible_text import visible_line
from pipeline.folders import Folders, make_folder
from pipeline.keys import Keys
from pipeline.logs import redact_text
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.supervisor.run_account import texts

FOLDER = "reports"
PAGE = 1000
MOST_KINDS = 200
"""Kinds of death that a report tells apart: what a message invents must not make it grow without end."""
EXAMPLES = 3
WHY_CHARACTERS = 300


@dataclass(slots=True)
class Kind:
    """Deaths of one stage and class."""

    stage: str
    what: str
    """`<boundary>: <class>`, or how it was lost."""
    count: int = 0
    runs: set[str] = field(default_factory=set)
    jobs: list[str] = field(default_factory=list)
    """Some of them."""
    why: str = ""
    """The whole reason of the last one."""

    def as_map(self) -> Found:
        """For JSON."""
        return {
            "stage": self.stage,
            "what": self.what,
            "count": self.count,
            "runs": sorted(self.runs)[:20],
            "jobs": self.jobs,
            "why": self.why,
        }


async def report(place: Workplace) -> Found:
    """Writes the reports of yesterday and today; answers today's."""
    folder = Folders.from_environment().state / FOLDER
    async with place.client() as client:
        today = datetime.fromtimestamp(await redis_now_ms(client) / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        found: Found = {}
        for day in (today - timedelta(days=1), today):
            kinds = await _kinds_of(client, place.shards(), day)
            found = {
                "day": f"{day:%Y-%m-%d}",
                "dead": sum(kind.count for kind in kinds),
                "kinds": [kind.as_map() for kind in sorted(kinds, key=lambda kind: -kind.count)],
            }
            if not place.dry_run and (kinds or day == today):
                _write(folder, _file(place.queue.namespace, day), found)
    oldest = today - timedelta(seconds=place.housekeeping.dead_letters_keep_s)
    found["removed"] = _remove_old(folder, place.queue.namespace, oldest, dry_run=place.dry_run)
    found["file"] = str(folder / _file(place.queue.namespace, today))
    return found


async def _kinds_of(client: AsyncClient, shards: Sequence[Keys], day: datetime) -> list[Kind]:
    found: dict[tuple[str, str], Kind] = {}
    for keys in shards:
        async for fields in _deaths(client, keys, day):
            what = _kind(fields.get("why", ""))
            place = (fields.get("stage", ""), what)
            if place not in found and len(found) >= MOST_KINDS:
                place = ("", "other kinds")
            kind = found.setdefault(place, Kind(*place))
            kind.count += 1
            kind.why = _shown(fields.get("why", ""))[:WHY_CHARACTERS]
            if fields.get("run") and len(kind.runs) < MOST_KINDS:
                kind.runs.add(_shown(fields["run"]))
            if fields.get("job") and len(kind.jobs) < EXAMPLES:
                kind.jobs.append(_shown(fields["job"]))
    return list(found.values())


async def _deaths(client: AsyncClient, keys: Keys, day: datetime) -> AsyncIterator[dict[str, str]]:
    start, end = f"{int(day.timestamp() * 1000)}", f"({int((day + timedelta(days=1)).timestamp() * 1000)}"
    while True:
        page = await leaving_room(partial(ask, client, "XRANGE", keys.dead, start, end, "COUNT", PAGE))
        for _, fields in page:
            yield texts(fields)
        if len(page) < PAGE:
            return
        start = "(" + page[-1][0].decode()


def _kind(why: str) -> str:
    """The first two parts of `<boundary>: <class>: <message>`, without numbers and ids, which would make each death one of its own."""
    return re.sub(r"\d[\w.-]*", "#", _shown(": ".join(why.split(": ")[:2])))[:120]


def _shown(text: str) -> str:
    return visible_line(redact_text(text))


def _file(namespace: str, day: datetime) -> str:
    return f"dead-letters-{namespace}-{day:%Y-%m-%d}.json"


def _write(folder: Path, name: str, found: Found) -> None:
    make_folder(folder)
    beside = folder / f".{name}.{os.getpid()}"
    beside.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    beside.replace(folder / name)


def _remove_old(folder: Path, namespace: str, oldest: datetime, *, dry_run: bool) -> int:
    removed = 0
    for path in folder.glob(f"dead-letters-{namespace}-????-??-??.json"):
        if path.stem.rpartition(f"-{namespace}-")[2] < f"{oldest:%Y-%m-%d}":
            removed += 1
            if not dry_run:
                path.unlink(missing_ok=True)
    return removed


__all__ = ["report"]
