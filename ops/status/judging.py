"""The verdict on what was looked at."""

from __future__ import annotations

from ops.status.facts import Facts
from ops.status.troubles import troubles
from ops.status.verdict import Judgement, Verdict
from pipeline.counts import counted


def judge(facts: Facts) -> Judgement:
    """The verdict on a pipeline."""
    found = troubles(facts)
    with_work = {run.look.name for run in facts.runs if run.has_work}
    blocked = {trouble.run for trouble in found if trouble.is_blocking and trouble.run}
    everything = any(trouble.is_blocking and not trouble.run for trouble in found)
    verdict = Verdict.HEALTHY
    if found:
        verdict = Verdict.STOPPED if everything or (with_work and with_work <= blocked) else Verdict.DEGRADED
    return Judgement(verdict=verdict, troubles=found, summary=_summary(facts, with_work))


def _summary(facts: Facts, with_work: set[str]) -> str:
    workers = f"{counted(len(facts.workers), 'worker')} on {counted(len({worker.node for worker in facts.workers}), 'node')}"
    if not with_work:
        return f"idle: no run has work; {workers}"
    in_flight = sum(run.look.in_flight for run in facts.runs)
    return f"{counted(len(with_work), 'run')} with work, {counted(in_flight, 'job')} in flight; {workers}"
