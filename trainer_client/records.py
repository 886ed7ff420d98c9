"""Reads the entries of a run's results stream: ended jobs, closed groups, finished steps, what awaits a reward, notes.

Entries are plain text. Fields that a newer writer added are ignored, ones that an older left out take their default; an entry that is none
of these is unreadable, which is said and does no harm to the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import orjson

from pipeline.messages import JobResult, Outcome, SegmentSize, TrajectoryCounts
from pipeline.segment_sizes import read_sizes
from pipeline.supervisor.actions import Verdict
from pipeline.trajectory_counts import read_counts

if TYPE_CHECKING:  # loaded with the first step
    from pipeline.supervisor.monitors import Starvation

STAGES = ("init", "run", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A closed group as it was accounted."""

    entry: str
    """Entry id in the results stream."""
    run: str
    group: str
    prompt: str
    draw: int
    verdict: Verdict
    why: str
    step: int | None
    """The step it is accounted to; None = none."""
    want: int
    """Members it had."""
    valid: int
    """Members that count in its statistics."""
    values: tuple[float | None, ...]
    """What the filter looked at, a member, in order; None where it does not count. Empty when the writer did not say."""
    mean: float | None
    """Of the values that count."""
    spread: float | None
    """Largest less smallest."""
    sampled_tokens: int
    """Of all members over all their attempts."""
    total_tokens: int
    first_version: str
    last_version: str
    incarnation: int
    """Of the trainer whose supervisor launched it."""
    components: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Named parts of the reward, a value a member, in order; `score` is the reward itself. None where a member has none."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """`sampled_tokens` by what became of them (`TokenFate`)."""
    age_s: float = 0.0
    """From its launch to its verdict."""
    age_versions: int | None = None
    """Policy versions from its oldest token to what the run had at the verdict; None = not known."""
    keeps_bodies: bool = False
    """It was filtered, and its trajectories can be fetched until the ack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step that is complete, or that ends short since no prompts are left."""

    entry: str
    run: str
    index: int
    groups: tuple[str, ...]
    """Ids of the groups to train, in the order they were accounted."""
    target: int
    n: int
    filtered: int
    dropped: int
    dead: int
    cancelled: int
    surplus: int
    stale: int
    """Groups that were too old for the step that had room."""
    redundant: int
    """Groups in flight that were given up when it was reached."""
    tokens_kept: int
    tokens_filtered: int
    tokens_cancelled: int
    tokens_failed: int
    took_s: float
    incarnation: int
    is_short: bool
    """Fewer groups than the target: the prompts ended, or it was cancelled."""
    cancelled_for: str = ""
    """Why it was cancelled; empty = it was not."""
    tokens_surplus: int = 0
    tokens_stale: int = 0
    tokens_late: int = 0
    cancel_settled_s: float | None = None
    """Of the cancels that were accounted to this step: the longest from an earlier step's target to the end of the last member; None =
    there were none."""
    starvation: Starvation = field(default_factory=lambda: _starvation({}))
    """In how much of its time too little was at work."""
    monitors: Mapping[str, float] = field(default_factory=dict)
    """Figures of the length monitor when it was reached (`LengthBias.figures`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitingRecord:
    """A job that awaits a reward from outside, or its group's hook. Its record goes when it ends."""

    entry: str
    job: str
    run: str
    group: str
    member: int
    task: str
    outcome: Outcome
    """What it ends as with a reward."""
    reward: float | None
    """Of its task, when it waits for its group's hook; None = none yet."""
    components: Mapping[str, float]
    stop: str
    run_attempt: int
    """Attempt whose trajectory is kept."""
    sampled_tokens: int
    total_tokens: int
    turns: int
    first_version: str
    last_version: str
    segments: tuple[SegmentSize, ...]
    counts: TrajectoryCounts | None
    """As of a `JobResult`."""
    due_ms: int
    """When it ends without one, by the clock of Redis."""
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecord:
    """A group whose members have all ended or wait: its hook's turn."""

    entry: str
    run: str
    group: str
    prompt: str
    want: int
    due_ms: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something the supervisor wants the trainer to know."""

    entry: str
    what: str
    """`need_prompts`: the reserve is empty while a step needs groups."""


Record = JobResult | GroupRecord | StepRecord | AwaitingRecord | HeldRecord | Note


class Unreadable(ValueError):
    """An entry that is no record of ours."""


def read_record(entry: str, flat: Sequence[bytes]) -> Record:
    """The record in one entry.

    Args:
        entry: id of the entry.
        flat: names and values in turn, as the server sends them.

    Raises:
        Unreadable: no record of ours, with what is wrong.
    """
    try:
        found = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat) - 1, 2)}
        kind = found.get("kind", "")
        if kind == "job":
            return _job(entry, found)
        if kind == "group":
            return _group(entry, found)
        if kind == "step":
            return _step(entry, found)
        if kind == "awaiting":
            return _awaiting(entry, found)
        if kind == "held":
            return _held(entry, found)
        if kind == "note":
            return Note(entry, found.get("note", ""))
    except KeyError as error:
        raise Unreadable(f"field {error} is missing") from error
    except (ValueError, TypeError) as error:
        raise Unreadable(str(error)) from error
    raise Unreadable(f"kind {kind!r}")


class _MemberEnd(TypedDict):
    """What the records of an ended job and of one that awaits its reward both say."""

    entry: str
    job: str
    run: str
    group: str
    member: int
    task: str
    outcome: Outcome
    reward: float | None
    components: Mapping[str, float]
    stop: str
    run_attempt: int
    sampled_tokens: int
    total_tokens: int
    turns: int
    first_version: str
    last_version: str
    segments: tuple[SegmentSize, ...]
    counts: TrajectoryCounts | None


def _member_end(entry: str, found: Mapping[str, str]) -> _MemberEnd:
    return _MemberEnd(
        entry=entry,
        job=found["job"],
        run=found["run"],
        group=found.get("grp", ""),
        member=int(found.get("n") or 0),
        task=found.get("task", ""),
        outcome=Outcome(found["out"]),
        reward=_number(found.get("rew", "")),
        components=_components(found.get("comps", "")),
        stop=found.get("stop", ""),
        run_attempt=int(found.get("ra") or 0),
        sampled_tokens=int(found.get("sampled") or 0),
        total_tokens=int(found.get("total") or 0),
        turns=int(found.get("turns") or 0),
        first_version=found.get("v0", ""),
        last_version=found.get("v1", ""),
        segments=read_sizes(found.get("segs", "")),
        counts=read_counts(found.get("counts", "")),
    )


def _job(entry: str, found: Mapping[str, str]) -> JobResult:
    seconds = {stage: int(found.get(f"{stage}_ms") or 0) / 1000 for stage in STAGES}
    return JobResult(
        **_member_end(entry, found),
        reason=found.get("why", ""),
        attempt=int(found.get("att") or 0),
        eval_attempt=int(found.get("ea") or 0),
        seconds={**seconds, "total": int(found.get("all_ms") or 0) / 1000},
        spent_tokens=int(found.get("spent") or found.get("sampled") or 0),
        waits=_waits(found, entry, seconds, int(found.get("all_ms") or 0)),
    )


def _awaiting(entry: str, found: Mapping[str, str]) -> AwaitingRecord:
    return AwaitingRecord(
        **_member_end(entry, found),
        due_ms=int(found.get("due") or 0),
        incarnation=int(found.get("inc") or 0),
    )


def _group(entry: str, found: Mapping[str, str]) -> GroupRecord:
    return GroupRecord(
        entry=entry,
        run=found["run"],
        group=found["grp"],
        prompt=found["prompt"],
        draw=int(found.get("draw") or 0),
        verdict=Verdict(found["verdict"]),
        why=found.get("why", ""),
        step=int(found["step"]) if found.get("step") else None,
        want=int(found["want"]),
        valid=int(found.get("valid") or 0),
        values=tuple(_number(word) for word in found["rews"].split(",")) if found.get("rews") else (),
        mean=_number(found.get("mean", "")),
        spread=_number(found.get("spread", "")),
        sampled_tokens=int(found.get("sampled") or 0),
        total_tokens=int(found.get("total") or 0),
        first_version=found.get("v0", ""),
        last_version=found.get("v1", ""),
        incarnation=int(found["inc"]),
        components=_member_components(found.get("comps", "")),
        tokens={fate: int(count) for fate, _, count in (word.partition(":") for word in found.get("fates", "").split(",") if word)},
        age_s=int(found.get("age_ms") or 0) / 1000,
        age_versions=int(found["age_v"]) if found.get("age_v") else None,
        keeps_bodies=found.get("kept") == "1",
    )


def _step(entry: str, found: Mapping[str, str]) -> StepRecord:
    return StepRecord(
        entry=entry,
        run=found["run"],
        index=int(found["k"]),
        groups=tuple(found.get("groups", "").split()),
        target=int(found["target"]),
        n=int(found["n"]),
        filtered=int(found.get("filtered") or 0),
        dropped=int(found.get("dropped") or 0),
        dead=int(found.get("dead") or 0),
        cancelled=int(found.get("cancelled") or 0),
        surplus=int(found.get("surplus") or 0),
        stale=int(found.get("stale") or 0),
        redundant=int(found.get("redundant") or 0),
        tokens_kept=int(found.get("tokens_kept") or 0),
        tokens_filtered=int(found.get("tokens_filtered") or 0),
        tokens_cancelled=int(found.get("tokens_cancelled") or 0),
        tokens_failed=int(found.get("tokens_failed") or 0),
        took_s=int(found.get("took_ms") or 0) / 1000,
        incarnation=int(found["inc"]),
        is_short=found.get("short", "0") == "1",
        cancelled_for=found.get("cx", ""),
        tokens_surplus=int(found.get("tokens_surplus") or 0),
        tokens_stale=int(found.get("tokens_stale") or 0),
        tokens_late=int(found.get("tokens_late") or 0),
        cancel_settled_s=int(found["cut_ms"]) / 1000 if found.get("cut_ms") else None,
        starvation=_starvation(found),
        monitors=_components(found.get("monitors", "")),
    )


def _starvation(found: Mapping[str, str]) -> Starvation:
    from pipeline.supervisor.monitors import read_starvation

    return read_starvation(found, watched_ms=int(found.get("watched_ms") or 0))


def _member_components(text: str) -> dict[str, tuple[float | None, ...]]:
    found = orjson.loads(text) if text else {}
    if not isinstance(found, dict):
        raise ValueError(f"components of a group are a {type(found).__name__}, not a map")
    return {name: tuple(None if value is None else float(value) for value in values) for name, values in found.items()}


def _held(entry: str, found: Mapping[str, str]) -> HeldRecord:
    return HeldRecord(
        entry=entry,
        run=found["run"],
        group=found["grp"],
        prompt=found.get("prompt", ""),
        want=int(found["want"]),
        due_ms=int(found.get("due") or 0),
        incarnation=int(found.get("inc") or 0),
    )


def _components(text: str) -> dict[str, float]:
    """Parts of a reward; one that is no number (JSON has no NaN) is NaN."""
    found = orjson.loads(text) if text else {}
    if not isinstance(found, dict):
        raise ValueError(f"components of a reward are a {type(found).__name__}, not a map")
    return {name: math.nan if value is None else float(value) for name, value in found.items()}


def _waits(found: Mapping[str, str], entry: str, seconds: Mapping[str, float], all_ms: int) -> dict[str, float]:
    """Seconds before each stage that it came to; a field that cannot be read is empty."""
    waits: dict[str, float] = {}
    done_ms = float(entry.partition("-")[0]) - all_ms  # when it was accepted: the entry's id is when it ended
    for stage, word in zip(STAGES, found.get("began", "").split(" "), strict=False):
        if not (word.isascii() and word.isdigit()):
            break
        waits[stage] = max(0.0, int(word) - done_ms) / 1000
        done_ms = int(word) + seconds[stage] * 1000
    return waits


def _number(text: str) -> float | None:
    return float(text) if text else None
