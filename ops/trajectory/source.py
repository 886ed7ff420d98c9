"""Where `rollstream trajectory` finds what it is asked about: files, folders, patterns, and jobs in Redis."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from ops.job.story import NoSuchJob
from pipeline import codec
from pipeline.errors import DamagedBody, NewerMessage, RollstreamError
from pipeline.keys import Keys, run_of
from pipeline.messages import JobTemplate, Stage, StopReason
from pipeline.redis_client import AsyncClient, ask
from pipeline.trajectory_file import SUFFIX, TrajectoryRecord, UnreadableTrajectory, record_of
from workers.agent import TrajectoryRecorder, TurnDelta
from workers.handlers.base import Environment

FACTS = {
    "task": "task",
    "n": "member",
    "draw": "draw",
    "att": "attempt",
    "st": "state",
    "out": "outcome",
    "why": "reason",
    "rew": "reward",
    "grp": "group",
}
"""Fields of a job's hash and what they are called in a record."""


class NothingThere(RollstreamError):
    """What was named is not there, or holds no trajectory."""


def files_of(source: str) -> list[Path] | None:
    """The files that a name means, in order; None when it names a job.

    Raises:
        NothingThere: it is written as a file, a folder or a pattern, and there is none.
    """
    path = Path(source)
    if os.path.isdir(source):  # False, too, for what no file can be called, such as a long id
        found = sorted(path.glob(f"*{SUFFIX}"))
        if not found:
            raise NothingThere(f"{source}: no file *{SUFFIX} in this folder; rollstream trajectory save writes them")
        return found
    if os.path.exists(source):
        return [path]
    if glob.has_magic(source):
        matches = sorted(Path(match) for match in glob.glob(source))
        if not matches:
            raise NothingThere(f"{source}: no file matches this pattern")
        return matches
    if "/" in source or source.endswith(SUFFIX):
        raise NothingThere(f"{source}: no such file")
    return None


async def record_of_job(client: AsyncClient, keys: Keys, job: str) -> TrajectoryRecord:
    """What Redis has of a job: its trajectory, or while it runs its finished turns.

    Raises:
        NoSuchJob
        NothingThere: it has not sampled a turn to its end, or what it sampled was not kept.
        UnreadableTrajectory
        BrokerError
    """
    header = {name.decode(): value.decode("utf-8", "replace") for name, value in (await ask(client, "HGETALL", keys.job(job))).items()}
    if not header:
        raise NoSuchJob(job)
    facts = {"job": job, "run": run_of(job)} | {name: header[field] for field, name in FACTS.items() if header.get(field)}
    if tokenizer := await _tokenizer(client, keys, facts["run"], header.get("tpl", "")):
        facts["tokenizer"] = tokenizer
    body = await ask(client, "GET", keys.body(job, header.get("b.run", "0"), Stage.RUN.value))
    if body is not None:
        return record_of(job, cast(bytes, body), facts, parts=await _parts(client, keys, job, header))
    deltas = await ask(client, "LRANGE", keys.body(job, header.get("att", "0"), "turns"), 0, -1)
    if not deltas:
        where = f"{header.get('st', '?')} in {header.get('stage', '?').upper()}"
        raise NothingThere(f"job {job} ({where}): no trajectory is kept of it, and no turn of a running attempt is finished")
    return _so_far(job, cast(list[bytes], deltas), facts)


async def _parts(client: AsyncClient, keys: Keys, job: str, header: Mapping[str, str]) -> dict[str, bytes]:
    """What judging a trajectory again takes, and the grade it had; only what is there and can be read."""
    where = {
        "prompt": keys.prompt(header.get("grp") or job),
        "template": keys.template(run_of(job), header.get("tpl", "")),
        "environment": keys.body(job, header.get("b.init", "0"), Stage.INIT.value),
        "grade": keys.body(job, header.get("b.eval", "0"), Stage.EVAL.value),
    }
    found = dict(zip(where, await ask(client, "MGET", *where.values()), strict=True))
    parts = {name: cast(bytes, body) for name, body in found.items() if body is not None}
    if "environment" in parts:
        try:  # what INIT noted, without the key to its sandbox
            parts["environment"] = codec.encode(replace(codec.decode(Environment, parts["environment"]), sandbox={}))
        except (DamagedBody, NewerMessage):
            del parts["environment"]
    return parts


async def _tokenizer(client: AsyncClient, keys: Keys, run: str, template: str) -> str:
    """Path of the tokenizer that the job's template names; empty = the package's own, or the template is gone."""
    body = await ask(client, "GET", keys.template(run, template))
    try:
        return "" if body is None else codec.decode(JobTemplate, cast(bytes, body)).chat.tokenizer
    except (DamagedBody, NewerMessage):
        return ""  # a record can be shown without it


def _so_far(job: str, deltas: Iterable[bytes], facts: Mapping[str, str]) -> TrajectoryRecord:
    try:
        recorder = TrajectoryRecorder.replay(codec.decode(TurnDelta, delta) for delta in deltas)
    except (DamagedBody, NewerMessage, ValueError, IndexError) as error:
        raise UnreadableTrajectory(job, f"journal of its finished turns: {error}") from error
    return record_of(job, codec.encode(recorder.trajectory(StopReason.LOST)), facts, ended=False)
