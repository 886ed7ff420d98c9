"""`bench scaling` and `bench nodes` measure what they say: the simulated fleet on a small one, the figures on made ones."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest

from ops.bench import nodes_bench, scaling_bench
from ops.bench.nodes_bench import NODES, SLEEP_S, SLOTS, Window
from ops.bench.nodes_task import TASK, Sleep, SleepingTask, busy_slots, install, read_accounts
from ops.bench.noop_pipeline import RUN
from ops.bench.report import Report
from ops.bench.scaling_bench import LONG, MODEL_SERVERS, ONE_TURN, TURNS, Measured, fleet, report_of
from ops.bench.scaling_host import Turns
from pipeline.inference_pool import InferencePool
from pipeline.redis_client import ask
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from pipeline.testing.servers import PrivateServer, ServerKind


@pytest.mark.one_server
async def test_simulated_jobs_go_all_the_way_and_say_to_the_pool_what_real_ones_do(server_kind: ServerKind, tmp_path: Path) -> None:
    """24 jobs on 4 slots of 2 nodes, so that slots are used again."""
    turns = Turns(turns=2, turn_s=0.2, delta_bytes=64)
    with PrivateServer(server_kind) as server:
        settings = QueueSettings(redis_url=server.url)
        async with fleet(settings, tmp_path, 2, turns, nodes=2, processes=1) as (pipeline, notes, _):
            pool = InferencePool(pipeline.client, settings.namespace, lease_s=settings.lease_s)

            async def is_called() -> bool:
                servers = (await pool.state(RUN)).servers
                return any(server.jobs and server.calls for server in servers)

            await pipeline.accept(24)
            await wait_until(is_called, "a job has a model server, and a call there", timeout_s=30.0)
            await pipeline.collect(24)

            async def is_looked_at_and_idle() -> bool:
                servers = (await pool.state(RUN)).servers
                return all(server.seen_ms and server.is_usable and not server.jobs and not server.calls for server in servers)

            await wait_until(is_looked_at_and_idle, "all servers were looked at and given back", timeout_s=30.0)
            servers = (await pool.state(RUN)).servers
            counters = await ask(pipeline.client, "HMGET", pipeline.keys.run(RUN), "accepted", "out.ok", "inflight")
            kinds = Counter(line.split()[0] for line in notes.read_text(encoding="ascii").splitlines())

    assert counters == [b"24", b"24", b"0"]
    assert len(servers) == MODEL_SERVERS
    assert kinds == {"claim": 24, "gap": 20}  # the first job of each of the four slots found it empty


def measured(cpu_ms: float, *, turns: Turns = TURNS, job: float = 5000.0) -> Measured:
    """A server that costs `job` bytes a job, 1,000 a turn and 1 a byte of a body, journal and trajectory counted."""
    n_bytes = job + 1000.0 * turns.turns + 2 * turns.turns * turns.delta_bytes
    return Measured(
        jobs_per_s=10,
        cpu_share=0.1,
        rest_share=0.01,
        cpu_ms=cpu_ms,
        commands=200,
        scripts=20,
        in_bytes=n_bytes,
        out_bytes=n_bytes,
        aof_bytes=n_bytes,
        open_bytes=4000,
        held_ratio=1.0,
        claims_ms=tuple(range(1, 101)),
        gaps_ms=(1.0, 2.0),
    )


def test_growth_is_the_largest_fleet_over_the_smallest_and_costs_come_apart() -> None:
    sizes = {64: [measured(1.0), measured(2.0)], 256: [measured(1.5)], 1024: [measured(1.8)]}

    report = report_of(sizes, measured(0.6, turns=ONE_TURN), measured(1.5 + 0.12, turns=LONG), measured(0.5), {})

    found = report.metrics
    assert found["cpu_growth_ratio"] == pytest.approx(1.2)
    assert not report.holds("cpu_growth_ratio")
    assert report.holds("claim_p99_ms")
    assert found["kib_cpu_us"] == pytest.approx(1)  # 120 KiB more, written twice, 0.12 ms more
    assert found["turn_cpu_us"] == pytest.approx(300 - 2)  # three turns more, 0.9 ms more; 2 KiB of each are its delta's
    assert found["job_cpu_us"] == pytest.approx(600 - 300)
    for way in ("aof", "in", "out"):
        assert (found[f"{way}_bytes_a_job"], found[f"{way}_bytes_a_turn"], found[f"{way}_bytes_a_byte"]) == pytest.approx((5000, 1000, 1))
    assert found["full_jobs_per_s"] == pytest.approx(0.79 / 0.5 * 1000)
    assert set(scaling_bench.BOUNDS) <= set(found)


def test_the_99th_percentile_is_of_all() -> None:
    sizes = {1024: [replace(measured(1.0), claims_ms=tuple([1.0] * 98 + [500.0, 500.0]))]}

    report = report_of(sizes, measured(1.0, turns=ONE_TURN), measured(1.0, turns=LONG), measured(1.0), {})

    assert report.metrics["claim_p99_ms"] == pytest.approx(500)


# ---- nodes


def sleeps_of(node: str, run: str, *, slots: int, rounds: int, from_s: float = 0.0) -> list[Sleep]:
    """Slots of a node that are busy all the time."""
    return [
        Sleep(f"{run}.{node}-{slot}-{number}", node, from_s + number * SLEEP_S, from_s + (number + 1) * SLEEP_S)
        for slot in range(slots)
        for number in range(rounds)
    ]


def test_a_lost_node_costs_the_jobs_that_ran_there_and_nothing_else() -> None:
    """One node alone, then three of which one is lost at 160 s with a job in each slot; its jobs run again on the others."""
    alone = sleeps_of("n1", "common1", slots=SLOTS, rounds=8)
    three = [sleep for node in ("n1", "n2", "n3") for sleep in sleeps_of(node, "lanes3", slots=SLOTS, rounds=10, from_s=80)]
    cut = [Sleep(f"common3.cut-{slot}", "n3", 156.0, None) for slot in range(SLOTS)]
    again = [replace(sleep, node="n1", began_s=168.0, ended_s=176.0) for sleep in cut]
    others = [sleep for node in ("n1", "n2") for sleep in sleeps_of(node, "lanes3-later", slots=SLOTS, rounds=1, from_s=160)]
    windows = {"common1": Window(8, 40), "lanes1": Window(8, 40), "common3": Window(88, 120), "lanes3": Window(88, 120)}
    windows["loss"] = Window(160, 176)
    records = Counter((sleep.job, "ok") for sleep in again)

    def report(*more: Sleep, ended: Counter[tuple[str, str]] = records) -> Report:
        sleeps = [*alone, *three, *cut, *again, *others, *more]
        return nodes_bench.report_of(sleeps, windows, {sleep.job for sleep in cut}, "n3", ended, (), {})

    found = report()
    assert found.metrics["common_ratio"] == found.metrics["lanes_ratio"] == NODES
    assert found.metrics["lanes3_local_ratio"] == 1
    assert found.metrics["planned_rate_ratio"] == pytest.approx(1)
    assert found.metrics["others_busy_ratio"] == pytest.approx((2 * SLOTS + SLOTS) * 8 / 16 / (2 * SLOTS))
    assert found.metrics["cut_begun_again_s"] == 8
    assert [name for name in ("begun_again_besides", "cut_without_end") if not found.holds(name)] == []
    assert not report(replace(others[0], began_s=150.0, ended_s=None)).holds("begun_again_besides")
    assert not report(replace(again[0], ended_s=None)).holds("begun_again_besides"), (
        "lost once more, which its node's loss does not explain"
    )
    one = min(records)
    for others_end in ({}, {one: 2}, {(one[0], "infra_failure"): 1}):
        ends = {**{record: 1 for record in records if record != one}, **others_end}
        assert report(ended=Counter(ends)).metrics["cut_without_end"] == 1
    assert set(nodes_bench.BOUNDS) <= set(found.metrics)


def test_work_that_was_cut_off_keeps_no_slot_busy(tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.write_text("began a 1.0\nbegan b 2.0\nslept a 9.0\nbegan c 9.0\nbegan b 10.0\n", encoding="ascii")

    sleeps = read_accounts({"n1": account, "n2": tmp_path / "never-wrote"})

    assert [(sleep.job, sleep.began_s, sleep.ended_s) for sleep in sleeps] == [
        ("a", 1.0, 9.0),
        ("b", 2.0, None),
        ("c", 9.0, None),
        ("b", 10.0, None),
    ]
    assert busy_slots(sleeps, 5.0, 13.0) == 0.5
    assert math.isclose(busy_slots(sleeps, 0.0, 16.0), 0.5)


def test_the_task_is_found_as_an_installed_one_is(tmp_path: Path) -> None:
    install(tmp_path)

    (point,) = [point for found in distributions(path=[str(tmp_path)]) for point in found.entry_points]

    assert (point.group, point.name, point.load()) == ("rollstream.handlers", TASK, SleepingTask)
