"""What the supervisor does to the data and what it costs, on the product: real Redis, workers, supervisors, trainers, rollouts that sleep.

Every arm (`dapo_arms`) has a fleet of its own, a namespace on one server, and all run at once: sleeping costs nothing, and a unit of time
becomes large against what the pipeline takes for itself, which is measured and printed. Ours is measured in a window of 50 steps after the
fleet has warmed up; generate-filter-repeat gets the same prompts and as many slots.

Tokens are counted where they are sampled, cancelled rollouts included. An uncancelled run is generate-filter-repeat: it trains on whole
groups and never looks at how long they took.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ops.bench.dapo_arms import FEW_STEPS, TARGET, Arm, Trained, train
from ops.bench.dapo_mix import TRUE_MEAN
from ops.bench.dapo_task import account_file, units_between
from ops.bench.report import Report
from ops.bench.servers import bench_server, bench_server_kind, version_of
from ops.child_processes import ChildProcesses
from pipeline.settings import QueueSettings

ARM_S = 500.0
"""So long takes each arm."""
HOSTS = 4
"""Processes with workers."""
WATCH_S = 1.0
LEAVE_S = 60.0
BOUNDS = {
    "tokens_to_oracle_lowest": (">=", 0.98),  # less says that rollouts which take long are lost
    "tokens_to_oracle_highest": ("<=", 1.08),
    "tokens_to_batches_of_1": ("<=", 0.90),
    "tokens_to_batches_of_3": ("<=", 0.75),
    "time_to_batches_64_slots": ("<=", 0.40),
    "time_to_batches_128_slots": ("<=", 0.25),
    "mean_length_off_most": ("<=", 0.03),
    "longest_5_percent_off_most": ("<=", 0.10),
    "slow_share_lowest": (">=", 0.45),
}


def arms() -> list[Arm]:
    """All that take part."""
    found = []
    for half_slow in (False, True):
        found += [
            Arm(how="ours", half_slow=half_slow, slots=128, over=over, staleness=staleness)
            for over in (1.0, 1.5, 2.0)
            for staleness in (1, 4)
        ]
        found.append(Arm(how="ours", half_slow=half_slow, slots=64, steps=FEW_STEPS))
        # equal slots change what a batch costs in time, not in tokens: other prompts make its tokens known better
        found += [
            Arm(how="batch", half_slow=half_slow, slots=slots, steps=FEW_STEPS, batch=batch * TARGET, seed=slots)
            for batch in (1, 3)
            for slots in (64, 128)
        ]
    return found


def run(say: Callable[[str], None]) -> Report:
    """The whole comparison, nine minutes."""
    kind = bench_server_kind()
    with bench_server(kind, "everysec") as server:
        found = asyncio.run(run_arms(server.url, arms(), ARM_S, say))
    return Report(
        name="dapo", metrics=metrics_of(found), bounds=BOUNDS, table=tuple(table_of(found)), versions={kind.name: version_of(kind)}
    )


async def run_arms(url: str, asked: Sequence[Arm], arm_s: float, say: Callable[[str], None]) -> list[Trained]:
    """Runs arms at once, each on a fleet of its own.

    Args:
        arm_s: about how long each of them takes.

    Raises:
        ChildEnded: a process of a fleet ended by itself.
    """
    queue = QueueSettings(redis_url=url)
    with tempfile.TemporaryDirectory(prefix="dapo-") as folder:
        accounts = Path(folder) / "accounts"
        accounts.mkdir()
        with ChildProcesses(Path(folder) / "logs", {"ROLLSTREAM_REDIS_URL": url}) as children:
            for host in range(min(HOSTS, len(asked))):
                fleets = [f"{_namespace(at)}:{arm.slots}" for at, arm in enumerate(asked) if at % HOSTS == host]
                children.start(f"workers-{host}", "ops.bench.dapo_host", "workers", str(accounts), str(Path(folder) / "scratch"), *fleets)
            children.start("supervisors", "ops.bench.dapo_host", "supervisors", *(_namespace(at) for at in range(len(asked))))
            say(f"{len(asked)} arms at once, about {arm_s:.0f} s")

            async def one(at: int, arm: Arm) -> Trained:
                trained = await train(queue.model_copy(update={"namespace": _namespace(at)}), arm, arm_s / arm.expected_units, accounts)
                say(f"{arm.name}: {trained.units_a_step:.2f} units a step, a unit was {trained.unit_s:.3f} s")
                return trained

            async def watch() -> None:
                while True:
                    children.check()
                    await asyncio.sleep(WATCH_S)

            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch(), name="watch")
                training = [tasks.create_task(one(at, arm), name=arm.name) for at, arm in enumerate(asked)]
                found = await asyncio.gather(*training)
                watching.cancel()
            children.stop_all(grace_s=LEAVE_S)  # each of them writes down what it has sampled of what it runs
        # the workers have ended: what was cancelled with them has been written down, too
        for trained in found:
            trained.units = units_between(account_file(accounts, trained.arm.name), trained.from_s, trained.to_s)
    return found


def _namespace(at: int) -> str:
    return f"arm{at}"


def metrics_of(found: Sequence[Trained]) -> dict[str, float]:
    """The bounded figures, each the worst of the arms that it is about, then those of each arm."""
    ours = [trained for trained in found if trained.arm.how == "ours"]
    full = [trained for trained in ours if trained.arm.slots == 128]
    lengths, longest = zip(*(off_uncancelled(trained, found) for trained in full), strict=True)
    metrics = {
        "tokens_to_oracle_lowest": min(trained.to_oracle for trained in full),
        "tokens_to_oracle_highest": max(trained.to_oracle for trained in full),
        "tokens_to_batches_of_1": max(_tokens_ratio(trained, found, 1) for trained in _default(full)),
        "tokens_to_batches_of_3": max(_tokens_ratio(trained, found, 3) for trained in _default(full)),
        "time_to_batches_64_slots": max(time_ratio(trained, found) for trained in _default(ours) if trained.arm.slots == 64),
        "time_to_batches_128_slots": max(time_ratio(trained, found) for trained in _default(full)),
        "mean_length_off_most": max(map(abs, lengths)),
        "longest_5_percent_off_most": max(map(abs, longest)),
        "slow_share_lowest": min(trained.slow_share for trained in full if trained.arm.half_slow),
        "late_in_run_ms": statistics.median(late_s for trained in found for late_s in trained.late_s) * 1000,
        "hops_ms": statistics.median(hop_s for trained in found for hop_s in trained.hops_s) * 1000,
        "unit_shortest_ms": min(trained.unit_s * trained.arm.mix.mean_factor for trained in found) * 1000,
    }
    for trained in found:
        name = trained.arm.name.replace("-", "_")
        metrics[f"{name}_tokens_to_oracle_ratio"] = trained.to_oracle
        metrics[f"{name}_units_a_step"] = trained.units_a_step
    return metrics


def off_uncancelled(trained: Trained, found: Sequence[Trained]) -> tuple[float, float]:
    """How far the mean length and the share of the longest 5 % are from those of an uncancelled run of the same mix."""
    uncancelled = [other for other in found if other.arm.how == "batch" and other.arm.half_slow == trained.arm.half_slow]
    groups = sum(len(other.slow) for other in uncancelled)
    mean_length = sum(other.mean_length * len(other.slow) for other in uncancelled) / groups
    longest = sum(other.longest * len(other.slow) for other in uncancelled) / groups
    return trained.mean_length / mean_length - 1, trained.longest / longest - 1


def time_ratio(trained: Trained, found: Iterable[Trained]) -> float:
    """Time of a step to that of the faster contender with as many slots."""
    alike = [other.units_a_step for other in found if _is_contender(other, trained) and other.arm.slots == trained.arm.slots]
    return trained.units_a_step / min(alike)


def _tokens_ratio(trained: Trained, found: Iterable[Trained], targets: int) -> float:
    contenders = [other for other in found if _is_contender(other, trained) and other.arm.batch == targets * TARGET]
    units, groups = sum(other.units for other in contenders), sum(len(other.slow) for other in contenders)
    return trained.tokens_a_group / (units / groups)


def _is_contender(other: Trained, trained: Trained) -> bool:
    return other.arm.how == "batch" and other.arm.half_slow == trained.arm.half_slow


def _default(found: Iterable[Trained]) -> list[Trained]:
    """Those with the settings that a trainer gets who says nothing."""
    return [trained for trained in found if (trained.arm.over, trained.arm.staleness) == (1.5, 1)]


def table_of(found: Sequence[Trained]) -> Iterable[str]:
    """Everybody side by side."""
    columns = {"slots": 6, "tokens": 9, "/oracle": 9, "time": 8, "busy": 6, "length": 8, "longest": 9, "slow": 6, "old": 6, "unit s": 8}
    yield " " * 28 + "".join(f"{name:>{width}s}" for name, width in columns.items())
    for half_slow in sorted({trained.arm.half_slow for trained in found}):
        alike = [trained for trained in found if trained.arm.half_slow == half_slow]
        what = "half of the prompts ten times slower" if half_slow else "equal prompts"
        yield f"{what}; oracle {alike[0].arm.mix.oracle:.1f} tokens an accepted group"
        for trained in alike:
            yield (
                f"  {_who(trained.arm):26s}{trained.arm.slots:6d}{trained.tokens_a_group:9.1f}{trained.to_oracle:9.3f}"
                f"{trained.units_a_step:8.2f}{trained.busy:6.2f}{trained.mean_length / TRUE_MEAN:8.3f}{trained.longest / 0.05:9.3f}"
                f"{trained.slow_share:6.2f}{sum(trained.stale) / len(trained.slow):6.2f}{trained.unit_s:8.3f}"
            )
    yield "tokens: sampled for each accepted group; time: of a step, in units; busy: share of slot time; old: above max_staleness, marked"
    yield "length, longest 5 %: of trained members, 1 = as sampled; unit s: seconds a unit took"


def _who(arm: Arm) -> str:
    if arm.how == "ours":
        return f"supervisor, over {arm.over:g}, stale {arm.staleness}"
    return f"batches of {arm.batch // TARGET} target" + ("s" if arm.batch > TARGET else "")
