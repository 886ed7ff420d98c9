"""A check of trajectories as lines for people, and as plain values for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from ops.trajectory.verdict import Check, Verdict
from ops.visible_text import visible_line
from workers.llm.logprob_distance import Distances, Summary, summary_of

FAULTS_SHOWN = 20
"""Of one record; more of them say nothing new."""


def lines_of(check: Check, *, quiet: bool = False) -> Iterator[str]:
    """The check, a line each; with `quiet` records that are fine have none."""
    for verdict in check.verdicts:
        if verdict.is_broken or verdict.biased or not quiet:
            yield from (visible_line(line) for line in _record_lines(verdict))
    if check.server is not None:
        yield from (visible_line(line) for line in _server_lines(check))
    n = len(check.verdicts)
    words = "keep their promises" if n > 1 else "keeps its promises"
    broken = f"; {check.broken} broken" if check.broken else ""
    yield f"{n - check.broken} of {n} {words}{broken}"


def _record_lines(verdict: Verdict) -> Iterator[str]:
    if verdict.unreadable:
        yield f"✗ {verdict.name}: {verdict.unreadable}"
        return
    sign = "✗" if verdict.is_broken else "✓"
    versions = ", ".join(f"{label[:60]} ({count:,})" for label, count in verdict.versions.items())
    so_far = "" if verdict.ended else " (so far)"
    yield (
        f"{sign} {verdict.name}{so_far}: {_many(verdict.turns, 'turn')} in {_many(verdict.segments, 'segment')}, "
        f"{verdict.sampled:,} of {_many(verdict.tokens, 'token')} sampled" + (f", by {versions}" if versions else "")
    )
    for fault in verdict.faults[:FAULTS_SHOWN]:
        yield f"    {fault}"
    if len(verdict.faults) > FAULTS_SHOWN:
        yield f"    and {len(verdict.faults) - FAULTS_SHOWN} more"
    for why, turns in verdict.biased.items():
        yield f"  ! {_many(turns, 'turn')} would bias a trainer's ratio: {why}"
    if verdict.unproved_turns:
        yield f"  ! {_many(verdict.unproved_turns, 'turn')} without a checksum: that their ids are those sent and sampled is not proved"


def _server_lines(check: Check) -> Iterator[str]:
    assert check.server is not None
    found, server = check.distances, check.server
    skipped = ", ".join(f"{count:,} {why}" for why, count in check.skipped.items())
    yield (
        f"logprobs against {server.url} ({server.model}, {server.server_version or 'version unknown'}, holds {server.version or '?'}): "
        f"{len(found.all_D):,} tokens compared" + (f", not comparable: {skipped}" if skipped else "")
    )
    if len(found.all_D):
        yield f"  {'nats':<14}{'tokens':>9}{'mean |d|':>11}{'p99.9':>10}{'signed':>11}{'max':>10}{'p = 0':>7}"
        for name, of in _summaries(found).items():
            label = name if name == "all" else f"{name} of turns"
            numbers = f"{of.mean_abs:>11.2g}{of.p999_abs:>10.2g}{of.signed_mean:>+11.2g}{of.max_abs:>10.2g}"
            yield f"  {label:<14}{of.tokens:>9,}{numbers}{of.impossible:>7,}"
    for complaint in check.complaints:
        yield f"  ✗ {complaint}"


def as_map(check: Check) -> dict[str, object]:
    """The check as plain values."""
    return {
        "fine": check.is_fine,
        "broken": check.broken,
        "records": [_verdict_map(verdict) for verdict in check.verdicts],
        "server": None if check.server is None else asdict(check.server),
        "tolerance": None if check.tolerance is None else asdict(check.tolerance),
        "logprobs": None if check.server is None else _distance_map(check.distances) | {"skipped": dict(check.skipped)},
        "complaints": list(check.complaints),
    }


def _verdict_map(verdict: Verdict) -> dict[str, object]:
    return {
        "name": verdict.name,
        "fine": not verdict.is_broken,
        "ended": verdict.ended,
        "unreadable": verdict.unreadable,
        "facts": dict(verdict.facts),
        "faults": [asdict(fault) for fault in verdict.faults],
        "biased": dict(verdict.biased),
        "unproved_turns": verdict.unproved_turns,
        "segments": verdict.segments,
        "turns": verdict.turns,
        "tokens": verdict.tokens,
        "sampled": verdict.sampled,
        "versions": dict(verdict.versions),
        "logprobs": None if verdict.distances is None else _distance_map(verdict.distances) | {"skipped": dict(verdict.skipped)},
    }


def _distance_map(distances: Distances) -> dict[str, object]:
    return {name: asdict(summary) for name, summary in _summaries(distances).items()}


def _summaries(distances: Distances) -> dict[str, Summary]:
    return {"all": summary_of(distances.all_D), "first": summary_of(distances.first_D), "last": summary_of(distances.last_D)}


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
