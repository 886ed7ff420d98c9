"""A look at a pipeline for people and for programs. The first line is the answer; the rest is what it comes from, fine at 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ops.run_view import ago
from ops.status.facts import Facts, RunFacts
from ops.status.set_up import SetUpFacts
from ops.status.trends import hours_until_full, jobs_a_second
from ops.status.verdict import Judgement, command_line, one_line
from pipeline.counts import counted
from pipeline.inference_pool import pause_words, standing
from pipeline.messages import Json, Stage
from pipeline.redis_address import SetUp

MOST_LINES = 20
"""Of nodes, of servers and of runs; the others are counted."""


def as_lines(judgement: Judgement, facts: Facts) -> Iterator[str]:
    """For people."""
    yield judgement.first_line
    for trouble in judgement.troubles[1:]:
        yield f"  also · {trouble.cause} · {one_line(trouble.what)} · next: {command_line(trouble.next)}"
    yield ""
    yield from _redis_lines(facts)
    yield from _some("nodes", _node_lines(facts))
    yield from _stage_lines(facts)
    yield from _some("servers", _server_lines(facts))
    yield from _some("runs", [_run_line(run) for run in sorted(facts.runs, key=lambda run: not run.has_work)])
    yield from _version_lines(facts)


def as_map(judgement: Judgement, facts: Facts) -> Json:
    """For programs. What cannot be told is None."""
    memory_h, disk_h = hours_until_full(facts)
    return {
        **judgement.as_map(),
        "set_up": asdict(facts.set_up),
        "redis": None
        if facts.redis is None
        else {**asdict(facts.redis), "hours_until_memory_full": memory_h, "hours_until_disk_full": disk_h},
        "nodes": [{"node": node.name, "state": node.state, "left_s": _seconds(node.left_ms), **node.fields} for node in facts.nodes],
        "stages": {
            stage.value: {
                "waiting": waiting,
                "running": running,
                "oldest_s": oldest,
                "slots": slots,
                "workers": workers,
                "rate": rate,
                "left_s": left,
            }
            for stage, waiting, running, oldest, slots, workers, rate, left in _stages(facts)
        },
        "runs": [
            {
                **asdict(run.look),
                "has_work": run.has_work,
                "unread": run.unread,
                "unread_bytes": run.unread_bytes,
                "why_waiting": [str(reason) for reason in run.reasons],
                "servers": []
                if run.pool is None
                else [{"url": server.url, "why": standing(server, run.pool)} for server in run.pool.servers],
            }
            for run in facts.runs
        ],
        "workers": [asdict(worker) | {"stage": worker.stage.value} for worker in facts.workers],
        "dead": facts.dead_total,
        "delayed": facts.delayed,
        "refused": list(facts.refused),
    }


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _redis_lines(facts: Facts) -> Iterator[str]:
    server = facts.redis
    if server is None:
        yield "Redis    this user may not ask"
        return
    memory_h, disk_h = hours_until_full(facts)
    bound = f" of {size(server.max_bytes)}" if server.max_bytes else ", no bound"
    yield f"Redis    {server.version} · memory {size(server.used_bytes)}{bound}, {size(server.reserved_bytes)} reserved{_full(memory_h)}"
    aof = f"append-only file {size(server.aof_bytes)}, fsync {server.fsync or 'not visible'}" if server.has_aof else "no append-only file"
    free = "disk not visible from here" if server.disk_free_bytes is None else f"disk {size(server.disk_free_bytes)} free{_full(disk_h)}"
    evicted = f" · {counted(server.evicted_keys, 'key')} EVICTED" if server.evicted_keys else ""
    yield f"         {aof} · {free}{evicted}"
    yield from (f"         {line}" for line in set_up_lines(facts.set_up))
    yield f"         delayed retries {facts.delayed} · dead letters {facts.dead_total}"


def set_up_lines(facts: SetUpFacts) -> Iterator[str]:
    """Who the masters are, and who would take over; nothing of a single server."""
    if facts.set_up is SetUp.SINGLE:
        return
    by = f"Sentinels {sum(not each.fault for each in facts.sentinels)}/{len(facts.sentinels)}" if facts.sentinels else "Cluster"
    for master in facts.masters:
        known = "replicas not visible" if master.replicas is None else f"{counted(master.replicas, 'replica')} in sync"
        shards = f" · shards {', '.join(map(str, master.shards))}" if master.shards else ""
        yield f"{by} · master {master.address}{'' if master.answers else ' DOWN'} · {known}{shards}"


def _full(hours: float | None) -> str:
    return "" if hours is None else f", full in {ago(hours * 3600)}"


def _node_lines(facts: Facts) -> list[str]:
    expected = [node for node in facts.nodes if not node.has_ended]
    lines = []
    if facts.nodes:
        lines.append(f"{len(expected)} expected, {sum(node.is_alive for node in expected)} seen")
    for node in facts.nodes:
        sizes = " ".join(f"{stage.value} {node.slots(stage)}/{node.size(stage) or 0}" for stage in Stage)
        if node.fields.get("serves"):
            sizes = f"{counted(len(node.fields.get('servers', '').split()), 'server')} of run {node.fields['serves']}"
        state = f"lost {ago(node.silent_ms / 1000)} ago" if node.is_lost else node.state
        left = "" if node.left_ms is None or not node.is_alive else f" · ends in {ago(max(0, node.left_ms) / 1000)}"
        images = node.number("images.free")
        boxes = node.fields.get("backend", "") + (f" ({node.fields['classes']})" if node.fields.get("classes") else "")
        disk = "" if images is None else f" · images {size(images)} free"
        lines.append(f"{node.name}  {state} · {sizes}{left}" + (f" · {boxes}" if boxes else "") + disk)
    known = {node.name for node in facts.nodes}
    for name in sorted({worker.node for worker in facts.workers} - known):
        here = Counter(worker.stage.value for worker in facts.workers if worker.node == name)
        lines.append(f"{name}  without a launcher · " + " ".join(f"{stage} {count}" for stage, count in here.items()))
    return lines


def _stages(facts: Facts) -> Iterator[tuple[Stage, int, int, float | None, int, int, float | None, float | None]]:
    for stage in Stage:
        streams = [stream for stream in facts.streams if stream.stage is stage]
        workers = [worker for worker in facts.workers if worker.stage is stage]
        waiting, running = sum(stream.waiting for stream in streams), sum(stream.held for stream in streams)
        oldest = min((stream.oldest_ms for stream in streams if stream.oldest_ms), default=0)
        rate = jobs_a_second(facts, stage)
        queued = sum(run.look.waiting for run in facts.runs) if stage is Stage.INIT else 0
        left = (waiting + queued) / rate if rate else None
        age_s = max(0, facts.now_ms - oldest) / 1000 if oldest else None
        yield stage, waiting, running, age_s, sum(worker.slots for worker in workers), len(workers), rate, left


def _stage_lines(facts: Facts) -> Iterator[str]:
    yield f"{'stage':8s} {'waiting':>8s} {'oldest':>8s} {'running':>8s} {'slots':>6s} {'workers':>8s} {'jobs/s':>8s} {'left':>8s}"
    for stage, waiting, running, oldest, slots, workers, rate, left in _stages(facts):
        yield (
            f"{stage.name:8s} {waiting:8d} {'-' if oldest is None else ago(oldest):>8s} {running:8d} {slots:6d} {workers:8d} "
            f"{'-' if rate is None else f'{rate:.2f}':>8s} {'-' if left is None else ago(left):>8s}"
        )


def _server_lines(facts: Facts) -> list[str]:
    lines = []
    for run in facts.runs:
        if run.pool is None or not (run.has_work or run.pool.servers):
            continue
        lines += [f"{run.look.name}: {words}" for words in pause_words(run.pool)]
        for server in run.pool.servers:
            version = f" · version {server.version}" if server.version else ""
            lines.append(f"{run.look.name}: {server.url} {standing(server, run.pool)}{version} · {counted(server.jobs, 'job')}")
    return lines


def _run_line(run: RunFacts) -> str:
    look = run.look
    step = (
        f"step {look.steps[0].index}: {look.steps[0].accepted} of {counted(look.steps[0].target, 'group')}"
        if look.steps
        else "no open step"
    )
    more = f" (+{len(look.steps) - 1} open)" if len(look.steps) > 1 else ""
    return (
        f"{look.name}  {look.state} · {step}{more} · {look.waiting} queued, {look.in_flight} in flight · reserve {look.reserve} · "
        f"unread {run.unread} (about {size(run.unread_bytes)}) · trainer heard {ago(look.contact_s)} ago"
    )


def _version_lines(facts: Facts) -> Iterator[str]:
    versions = Counter(worker.version for worker in facts.workers if worker.version)
    if len(versions) > 1:
        yield "versions " + ", ".join(f"{version}: {counted(count, 'worker')}" for version, count in sorted(versions.items()))


def _some(title: str, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines[:MOST_LINES] or ["none"]):
        yield f"{title if not number else '':8s} {one_line(line)}"
    if len(lines) > MOST_LINES:
        yield f"{'':8s} and {len(lines) - MOST_LINES} more: --json has all"


def size(count: int) -> str:
    """Bytes in one unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
