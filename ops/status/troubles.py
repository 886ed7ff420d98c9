"""Which causes the facts show. Pure: each function looks for one kind, and the order is that of `trouble.ORDER`."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

from ops.dead.letters import LOST
from ops.node.reading import NodeView
from ops.run_view import ago
from ops.status.facts import RECENT_MS, Facts, RunFacts
from ops.status.set_up_troubles import of_set_up
from ops.status.trends import ended_lately, jobs_a_second
from ops.status.trouble import Trouble
from pipeline.clock_skew import LARGE_MS
from pipeline.counts import counted
from pipeline.messages import Stage

ADMISSION_SHARE = 0.8
"""Of `maxmemory`, beyond which no work is accepted (`memory_refusal` in the scripts of admission)."""
UPDATE_MS = 10_000
"""A pause for an update that is younger is how a run goes on."""
AWAY_MS = 15 * 60_000
"""The same of engines that are away while their trainer trains."""
DEAD_SHARE = 0.02
POISON_LOSSES = 2
MOST_SAID = 200
"""Characters of a process's last line."""
IMAGE_MISSING = "sandbox: image_missing"
IMAGE_PULL = re.compile(r"rollstream (image pull .+?)(?:$|;)")
OF_RUNS = {
    "no_capability": True,
    "servers_paused": True,
    "no_server": True,
    "server_down": True,
    "server_unsynced": True,
    "no_supervisor": True,
    "policy_unknown": True,
    "groups_broken": False,
    "reserve_empty": False,
    "run_paused": False,
    "results_unread": False,
    "groups_too_old": False,
}
"""Causes of a run's waits that are a trouble -> whether nothing of the run gets on by them; the others only with nothing in flight."""
QUIETLY = frozenset({"reserve_empty", "run_paused"})
"""Of those: what lets a run come to an end once nothing is in flight."""


def troubles(facts: Facts) -> list[Trouble]:
    """All of them, the first one first."""
    found = [
        *_of_redis(facts),
        *of_set_up(facts.set_up),
        *_of_rights(facts),
        *_of_stages(facts),
        *_of_lanes(facts),
        *_of_nodes(facts),
        *_of_dead_letters(facts),
        *_of_runs(facts),
        *_of_clocks(facts),
    ]
    return sorted(found, key=lambda trouble: trouble.order)


def _of_redis(facts: Facts) -> Iterator[Trouble]:
    server = facts.redis
    if server is None:
        return
    persistence = ("rollstream", "redis", "cli", "INFO", "persistence")
    if server.aof_fails or server.snapshot_fails:
        what = "write to its append-only file" if server.aof_fails else "save a snapshot"
        yield Trouble(
            cause="redis_disk_full",
            what=f"Redis could not {what} and refuses all writes: its disk is full or broken{_free(server.disk_free_bytes)}",
            next=persistence,
            is_blocking=True,
        )
    used = server.used_bytes + server.reserved_bytes
    if server.max_bytes and used > ADMISSION_SHARE * server.max_bytes:
        biggest = max(facts.runs, key=lambda run: run.unread_bytes, default=None)
        unread = ""
        if biggest is not None and biggest.unread:
            unread = f"; run {biggest.look.name} has {counted(biggest.unread, 'record')} unread"
        yield Trouble(
            cause="redis_memory_full",
            what=f"Redis takes no new work: {_mib(server.used_bytes)} used and {_mib(server.reserved_bytes)} reserved of "
            f"{_mib(server.max_bytes)}{unread}",
            next=("rollstream", "run", "show", biggest.look.name)
            if unread and biggest
            else ("rollstream", "redis", "cli", "INFO", "memory"),
            is_blocking=not any(run.look.in_flight for run in facts.runs),
        )


def _of_rights(facts: Facts) -> Iterator[Trouble]:
    doctor = ("rollstream", "doctor")
    if facts.denials:
        yield Trouble(cause="acl_too_narrow", what="; ".join(facts.denials[:3]), next=doctor)
    elif facts.refused:
        yield Trouble(cause="acl_too_narrow", what=f"this user may not ask Redis for {', '.join(facts.refused)}", next=doctor)


def _of_stages(facts: Facts) -> Iterator[Trouble]:
    work = {stage: sum(stream.waiting + stream.held for stream in facts.streams if stream.stage is stage) for stage in Stage}
    live = Counter(worker.stage for worker in facts.workers)
    wanted = [stage for stage in Stage if work[stage]] or ([Stage.INIT] if any(run.look.waiting for run in facts.runs) else [])
    missing = [stage for stage in wanted if not live[stage]]
    if not missing:
        return
    ended = [node for node in facts.nodes if not node.is_alive and (left := node.left_ms) is not None and left <= 0]
    if not facts.workers and ended:
        last = max(ended, key=lambda node: node.number("until") or 0)
        yield Trouble(
            cause="fleet_gone",
            what=f"No worker is alive and work waits: {len(ended)} of {counted(len(facts.nodes), 'node')} came to the announced end, "
            f"the last one {last.name}, {ago(-(last.left_ms or 0) / 1000)} ago",
            next=("rollstream", "node", "list"),
            is_blocking=True,
        )
        return
    stage = missing[0] if len(missing) == 1 else min(missing, key=lambda one: (-work[one], one.value))
    names, waiting = ", ".join(one.name for one in missing), sum(work[one] for one in missing)
    words = counted(waiting, "job waits", "jobs wait") if waiting else "queued jobs wait"
    yield Trouble(
        cause="no_worker",
        what=f"No worker of stage {names} is alive, and {words} there{_last_heard(facts)}",
        next=("rollstream", "node", "list") if facts.nodes else ("rollstream", "worker", "run", "--stage", stage.value),
        is_blocking=True,
    )


def _last_heard(facts: Facts) -> str:
    crashed = [node for node in facts.nodes if node.crash_stands]
    if crashed:
        last = max(crashed, key=lambda node: node.number("crash.at") or 0)
        said = f": {last.last_line[:MOST_SAID]}" if last.last_line else ""
        return f"; {last.fields['crash.name']} of node {last.name} ended with {last.fields.get('crash.code', '?')}{said}"
    gone = {name: at for name, at in facts.heard_ms.items() if name not in {worker.node for worker in facts.workers}}
    if not gone:
        return ""
    name = max(gone, key=lambda node: gone[node])
    return f"; node {name} was heard {ago((facts.now_ms - gone[name]) / 1000)} ago"


def _of_lanes(facts: Facts) -> Iterator[Trouble]:
    readers = {worker.node for worker in facts.workers if worker.stage is Stage.RUN}
    if not readers:
        return  # no_worker says it
    for stream in facts.streams:
        jobs = stream.waiting + stream.held
        if stream.stage is Stage.RUN and stream.node and jobs and stream.node not in facts.lanes_read and stream.node not in readers:
            yield Trouble(
                cause="lane_orphaned",
                what=f"{counted(jobs, 'job is', 'jobs are')} in the lane of node {stream.node}, whose RUN workers are gone; "
                "a janitor sends back to INIT what is there, in any worker or supervisor that lives",
                next=("rollstream", "queue", "peek", stream.short.removeprefix("s:")),
            )


def _of_nodes(facts: Facts) -> Iterator[Trouble]:
    idle = [worker for worker in facts.workers if worker.idle_why]
    waits = {stage for stage in Stage for stream in facts.streams if stream.stage is stage and stream.waiting}
    for stage in Stage:
        of_stage = [worker for worker in idle if worker.stage is stage]
        if of_stage:
            all_idle = len(of_stage) == sum(worker.stage is stage for worker in facts.workers)
            names = ", ".join(sorted({worker.node for worker in of_stage})[:3])
            yield Trouble(
                cause="node_degraded",
                what=f"{stage.name} claims nothing on {'every node' if all_idle else 'node'} {names}: {of_stage[0].idle_why}",
                next=("rollstream", "doctor"),
                is_blocking=all_idle and stage in waits,
            )
    told = {worker.node for worker in idle}
    for node in facts.nodes:
        if node.has_failed:
            yield Trouble(cause="node_failed", what=_failure(node), next=("rollstream", "node", "show", node.name))
        elif node.is_alive and node.fields.get("degraded") and node.name not in told:
            yield Trouble(
                cause="node_degraded", what=f"node {node.name}: {node.fields['degraded']}", next=("rollstream", "node", "show", node.name)
            )
        elif node.is_lost:
            yield Trouble(
                cause="node_lost",
                what=f"node {node.name} fell silent {ago(node.silent_ms / 1000)} ago without having ended",
                next=("rollstream", "node", "show", node.name),
            )


def _failure(node: NodeView) -> str:
    """Which node, when, what crashed with what code, and its last line."""
    when = "is ending after a crash" if node.is_alive else f"failed {ago(node.silent_ms / 1000)} ago"
    is_told = node.last_line and node.fields.get("crash.name") == node.fields["failed"]
    return f"node {node.name} {when}: {node.fields.get('why', '')}" + (f"; its last line: {node.last_line[:MOST_SAID]}" if is_told else "")


def _of_dead_letters(facts: Facts) -> Iterator[Trouble]:
    missing = [letter for letter in facts.dead if letter.kind == IMAGE_MISSING]
    if missing:
        pull = IMAGE_PULL.search(missing[0].why)
        yield Trouble(
            cause="image_missing",
            what=f"{counted(len(missing), 'job')} of the last {RECENT_MS // 60_000} minutes: "
            f"{missing[0].why.split(': ', 2)[-1].split(';')[0]}",
            next=("rollstream", *shlex.split(pull[1])) if pull else ("rollstream", "image", "list"),
        )
    poison = [(letter.job, int(found[1])) for letter in facts.dead if (found := LOST.match(letter.why))]
    poison += [(job, lost) for job, lost in facts.lost_jobs.items() if lost >= POISON_LOSSES]
    if poison:
        job, lost = max(poison, key=lambda one: one[1])
        others = f", and {len(poison) - 1} more like it" if len(poison) > 1 else ""
        yield Trouble(
            cause="poison_job",
            what=f"{counted(lost, 'worker')} died or fell silent under job {job}{others}",
            next=("rollstream", "job", "show", job),
        )
    rest = [letter for letter in facts.dead if letter.kind not in (IMAGE_MISSING, "lost")]
    if rest and len(rest) > DEAD_SHARE * ended_lately(facts):
        kind, count = Counter(letter.kind for letter in rest).most_common(1)[0]
        yield Trouble(
            cause="dead_letters",
            what=f"{counted(len(rest), 'job')} of the last {RECENT_MS // 60_000} minutes became dead letters, {count} of them by {kind}",
            next=("rollstream", "dead", "list"),
        )


def _of_runs(facts: Facts) -> Iterator[Trouble]:
    for run in facts.runs:
        for reason in run.reasons:
            cause = reason.cause.value
            if cause not in OF_RUNS or (cause == "servers_paused" and not _pause_is_long(run)):
                continue
            if cause == "no_server" and not _calls_a_model(facts, run):
                continue
            yield Trouble(
                cause=cause,
                what=f"run {run.look.name}: {reason}",
                next=_next_of_run(cause, run.look.name),
                run=run.look.name,
                is_blocking=OF_RUNS[cause] or (cause in QUIETLY and not run.look.in_flight),
            )


def _calls_a_model(facts: Facts, run: RunFacts) -> bool:
    """Whether jobs of a run without servers miss one; a task may call none."""
    if run.look.places:
        return run.look.acting + run.look.held > 0
    return not jobs_a_second(facts, Stage.RUN)  # no worker says (`worker.adaptive` is off), and some jobs end


def _pause_is_long(run: RunFacts) -> bool:
    pool = run.pool
    if pool is None or pool.pause is None or not pool.is_paused:
        return True  # engines that nobody here paused
    return pool.now_ms - pool.pause.since_ms > (AWAY_MS if pool.is_away else UPDATE_MS)


def _next_of_run(cause: str, run: str) -> tuple[str, ...]:
    match cause:
        case "no_server":
            return ("rollstream", "llm", "add", "--help")
        case "servers_paused" | "server_down" | "server_unsynced":
            return ("rollstream", "llm", "list", "--run", run)
        case "no_supervisor" | "policy_unknown":
            return ("rollstream", "supervisor", "run")
        case "groups_broken":
            return ("rollstream", "dead", "list", "--run", run)
        case "no_capability":
            return ("rollstream", "worker", "run", "--stage", "init")
        case "run_paused":
            return ("rollstream", "run", "set", run, "--resume")
        case _:
            return ("rollstream", "run", "show", run)


def _of_clocks(facts: Facts) -> Iterator[Trouble]:
    off = {f"node {worker.node}": worker.skew_ms for worker in facts.workers if abs(worker.skew_ms) > LARGE_MS}
    off |= {f"node {node.name}": skew for node in facts.nodes if node.is_alive and abs(skew := node.skew_ms or 0) > LARGE_MS}
    if abs(facts.skew_ms) > LARGE_MS:
        off["this machine"] = facts.skew_ms
    if off:
        yield Trouble(cause="clock_skew", what=_skews(off.items()), next=("rollstream", "doctor"))


def _skews(off: Iterable[tuple[str, int]]) -> str:
    worst = sorted(off, key=lambda one: -abs(one[1]))
    words = [f"{name} is {abs(skew) / 1000:.1f} s {'ahead of' if skew > 0 else 'behind'} Redis" for name, skew in worst[:3]]
    return f"The clock of {'; of '.join(words)}" + (f"; and {len(worst) - 3} more" if len(worst) > 3 else "")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _free(size: int | None) -> str:
    return "" if size is None else f" ({_mib(size)} free)"
