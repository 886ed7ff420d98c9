"""Gathers the facts of a report. Redis keeps accounts of a run's newest steps, with the verdicts of their groups, also after the ack;
records of single jobs go with it. An export has both for longer: its records are taken too, and none is counted twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from ops.export.parts import ExportError, Parts
from ops.report.facts import STAGES, GroupFacts, JobFacts, RunFacts, StepFacts
from ops.run_report import report_on
from pipeline.keys import Keys
from pipeline.messages import JobResult
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.settings import QueueSettings
from pipeline.supervisor.run_account import StepAccount, read_steps, texts
from trainer_client.records import GroupRecord, Unreadable, read_record

MOST_STEPS = 2000
PAGE = 500
NEEDED = {
    "trajectories": ("entry", "outcome", "reason", "reward", "seconds", "waits", "sampled_tokens"),
    "groups": ("group", "verdict", "step", "mean", "valid", "sampled_tokens", "closed_at", "entry"),
    "steps": ("entry", "step", "groups", "target", "is_short", "verdicts", "tokens", "took_s", "watched_s", "short_s", "cancel_settled_s"),
}
"""Columns that a report reads of an export: never the token arrays."""


async def gather(client: AsyncClient, settings: QueueSettings, keys: Keys, run: str, export: Path | None = None) -> RunFacts:
    """Reads it all.

    Args:
        export: folder of an export of this run.

    Raises:
        UnknownRun
        ExportError: the folder holds no export of this run.
        BrokerError
    """
    report = await report_on(client, settings, keys, run)
    head = texts(await ask(client, "HGETALL", keys.run(run)))
    accounts = await read_steps(client, keys, run, head, last=MOST_STEPS)
    steps = {account.index: _step_of_account(account) for account in accounts if not account.is_open}
    groups: dict[str, GroupFacts] = {}
    for index in (*(account.index for account in accounts), None):  # None: those that wait for the next step to be opened
        for group, line in texts(await ask(client, "HGETALL", keys.step_groups(run, "next" if index is None else index))).items():
            if (facts := _group_of_line(group, line, index)) is not None:
                groups[group] = facts
    jobs: dict[str, JobFacts] = {}
    await _read_results(client, keys, run, jobs, groups)
    if export is not None:
        await asyncio.to_thread(_read_export, export, run, jobs, groups, steps)
    return RunFacts(
        now_s=await redis_now_ms(client) / 1000,
        report=report,
        steps=tuple(steps[index] for index in sorted(steps)),
        groups=tuple(groups.values()),
        jobs=tuple(jobs[entry] for entry in sorted(jobs, key=_order)),
        export=str(export or ""),
        jobs_counted=dict(report.look.outcomes),
    )


def _order(entry: str) -> tuple[int, int]:
    ms, _, sequence = entry.partition("-")
    return int(ms), int(sequence or 0)


async def _read_results(client: AsyncClient, keys: Keys, run: str, jobs: dict[str, JobFacts], groups: dict[str, GroupFacts]) -> None:
    start = "-"
    while True:
        page = await ask(client, "XRANGE", keys.results(run), start, "+", "COUNT", PAGE)
        for entry, fields in page:
            try:
                record = read_record(entry.decode(), [word for pair in fields.items() for word in pair])
            except Unreadable:
                continue
            if isinstance(record, JobResult):
                jobs[record.entry] = JobFacts(
                    entry=record.entry,
                    outcome=record.outcome.value,
                    reason=record.reason,
                    reward=record.reward,
                    seconds=record.seconds,
                    waits=record.waits,
                    sampled_tokens=record.sampled_tokens,
                )
            elif isinstance(record, GroupRecord):
                groups[record.group] = GroupFacts(
                    group=record.group,
                    verdict=record.verdict.value,
                    step=record.step,
                    mean=record.mean,
                    valid=record.valid,
                    sampled_tokens=record.sampled_tokens,
                    closed_s=_order(record.entry)[0] / 1000,
                )
        if len(page) < PAGE:
            return
        start = "(" + page[-1][0].decode()


def _step_of_account(account: StepAccount) -> StepFacts:
    return StepFacts(
        index=account.index,
        accepted=account.accepted,
        target=account.target,
        is_short=account.is_short,
        counts=account.counts,
        tokens=account.tokens,
        took_s=account.took_s,
        starved_share=account.starvation.share,
        cancel_settled_s=account.cancel_settled_s,
    )


def _group_of_line(group: str, line: str, step: int | None) -> GroupFacts | None:
    """A verdict line of the ledger: verdict, turn or why, prompt, draw, want, valid, mean, spread, sampled tokens, closed at (ms)."""
    fields = line.split("|")
    if len(fields) < 10:
        return None
    valid, mean, _, sampled, closed = fields[-5:]
    try:
        return GroupFacts(
            group=group,
            verdict=fields[0],
            step=step,
            mean=float(mean) if mean else None,
            valid=int(valid or 0),
            sampled_tokens=int(float(sampled or 0)),
            closed_s=float(closed) / 1000,
        )
    except ValueError:
        return None


# ---- an export


def _read_export(folder: Path, run: str, jobs: dict[str, JobFacts], groups: dict[str, GroupFacts], steps: dict[int, StepFacts]) -> None:
    try:
        said = orjson.loads((folder / "export.json").read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ExportError(f"{folder} holds no export ({error}): rollstream run export {run} --to {folder} makes one") from error
    if not isinstance(said, dict) or said.get("run") != run:
        raise ExportError(f"{folder} holds an export of run {said.get('run') if isinstance(said, dict) else said!r}, not of {run!r}")
    format_ = "jsonl" if said.get("format") == "jsonl" else "parquet"
    for row in _rows(folder, "trajectories", format_):
        jobs.setdefault(row["entry"], _exported_job(row))
    for row in _rows(folder, "groups", format_):
        groups.setdefault(row["group"], _exported_group(row))
    for row in _rows(folder, "steps", format_):
        steps.setdefault(int(row["step"]), _exported_step(row))


def _rows(folder: Path, dataset: str, format_: str) -> Iterator[Mapping[str, Any]]:
    for path in Parts(folder / dataset, format_).paths():
        if format_ == "jsonl":
            with path.open("rb") as file:
                for line in file:
                    yield orjson.loads(line)
        else:
            from pyarrow import parquet

            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=2000, columns=list(NEEDED[dataset])):
                    yield from batch.to_pylist()


def _exported_job(row: Mapping[str, Any]) -> JobFacts:
    return JobFacts(
        entry=row["entry"],
        outcome=row["outcome"],
        reason=row["reason"],
        reward=row["reward"],
        seconds={name: row["seconds"][name] for name in (*STAGES, "total") if row["seconds"].get(name) is not None},
        waits={name: row["waits"][name] for name in STAGES if row["waits"].get(name) is not None},
        sampled_tokens=row["sampled_tokens"],
    )


def _exported_group(row: Mapping[str, Any]) -> GroupFacts:
    return GroupFacts(
        group=row["group"],
        verdict=row["verdict"],
        step=row["step"],
        mean=row["mean"],
        valid=row["valid"],
        sampled_tokens=row["sampled_tokens"],
        closed_s=_order(row["entry"])[0] / 1000,
    )


def _exported_step(row: Mapping[str, Any]) -> StepFacts:
    short, watched = _map(row["short_s"]), row["watched_s"] or 0.0
    return StepFacts(
        index=row["step"],
        accepted=len(row["groups"]),
        target=row["target"],
        is_short=row["is_short"],
        counts={name: int(count) for name, count in _map(row["verdicts"]).items()},
        tokens={name: int(count) for name, count in _map(row["tokens"]).items()},
        took_s=row["took_s"],
        starved_share=min(1.0, sum(short.values()) / watched) if watched else 0.0,
        cancel_settled_s=row["cancel_settled_s"],
    )


def _map(value: Mapping[str, float] | Sequence[tuple[str, float]]) -> dict[str, float]:
    """Parquet's maps come as pairs."""
    return dict(value)


__all__ = ["gather"]
