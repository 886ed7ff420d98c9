"""Benchmarks measure what they say, seen on small ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest

from ops.bench import BENCHMARKS
from ops.bench.cancel_bench import CancelFleet, report_of
from ops.bench.leases_bench import measure
from ops.bench.memory_bench import MOST_BYTES_A_JOB, left_over
from ops.bench.noop_pipeline import RUN, noop_pipeline
from ops.bench.report import Report
from ops.bench.rival_pipeline import measure_rq, measure_taskiq
from ops.bench.rivals import HOW_TO_GET, Rivals
from pipeline.redis_client import ask
from pipeline.testing.servers import PrivateServer, ServerKind

ROOT = Path(__file__).parents[3]


def quiet(line: str) -> None:
    """Takes what a benchmark tells meanwhile."""


@pytest.mark.slow
@pytest.mark.one_server
async def test_every_job_of_a_measurement_ends_and_is_acknowledged(server_kind: ServerKind) -> None:
    with PrivateServer(server_kind) as server:
        async with noop_pipeline(server.url, processes=2, slots=16) as pipeline:
            measured = await pipeline.measure(96)

            assert measured.jobs_per_s > 0
            assert 0 < measured.redis_cpu_ms_a_job < 1000
            assert await ask(pipeline.client, "XLEN", pipeline.keys.results(RUN)) == 0
            assert not await ask(pipeline.client, "EXISTS", pipeline.keys.queue(RUN), pipeline.keys.open_units(RUN))
            counters = await ask(pipeline.client, "HMGET", pipeline.keys.run(RUN), "accepted", "out.ok", "inflight")
            assert counters == [b"352", b"352", b"0"]  # 256 of them to warm up


@pytest.mark.slow
@pytest.mark.one_server
async def test_a_steady_queue_is_as_deep_after_it_as_before(server_kind: ServerKind) -> None:
    with PrivateServer(server_kind) as server:
        async with noop_pipeline(server.url, slots=8) as pipeline:
            await pipeline.accept(400)

            await pipeline.measure_steady(64)

            accepted = int(await ask(pipeline.client, "HGET", pipeline.keys.run(RUN), "accepted"))
            assert accepted >= 256 + 400 + 64  # to warm up, at the start, and one for each that ended
            await pipeline.collect(400)
            assert int(await ask(pipeline.client, "HGET", pipeline.keys.run(RUN), "out.ok")) == accepted


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.timeout(120)
async def test_what_a_cancel_is_measured_on_ends_whole(server_kind: ServerKind) -> None:
    """Promise 4 in processes, by counts: each job has its record (the round itself insists), the model server has no request, and no call
    of the cancelled jobs begins while the next ones run on the same workers."""
    with PrivateServer(server_kind) as server, TemporaryDirectory(prefix="rsb", dir="/tmp") as folder:
        async with CancelFleet(server.url, Path(folder), processes=2, slots=16) as fleet:
            first = await fleet.round(0, whole_run=False)
            second = await fleet.round(1, whole_run=True)

            assert [len(measured.last_calls_ms) for measured in (first, second)] == [32, 32]
            assert (first.calls_left, second.calls_left) == (0, 0)
            assert fleet.calls_of("bench0") == first.calls
            report = report_of([first, second], {})
            assert set(report.bounds) <= set(report.metrics)
            assert 0 < report.metrics["settled_ms"] < 20_000


@pytest.mark.one_server
async def test_leases_are_renewed_round_after_round(server_kind: ServerKind) -> None:
    cost = await measure(server_kind, 64, quiet)

    assert 0 < cost.server_s < 1
    assert 0 < cost.client_s < 1


@pytest.mark.slow
@pytest.mark.one_server
async def test_acknowledged_jobs_leave_little_behind(server_kind: ServerKind) -> None:
    assert await left_over(server_kind, 4_000, quiet) < MOST_BYTES_A_JOB


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.parametrize("worker", ["simple", "fork"])
async def test_rq_does_the_same_three_hops(server_kind: ServerKind, worker: str) -> None:
    python = Rivals().python_with_rq()
    assert python is not None, "rq is in the ops extra"
    with PrivateServer(server_kind) as server:
        measured = await measure_rq(server.url, python, 4, "fork" if worker == "fork" else "simple")

    assert measured.jobs_per_s > 0


@pytest.mark.slow
@pytest.mark.one_server
async def test_taskiq_does_the_same_three_hops(server_kind: ServerKind) -> None:
    python = Rivals().python_with_taskiq()
    if python is None:
        pytest.skip(f"the rivals are not installed: {HOW_TO_GET}")
    with PrivateServer(server_kind) as server:
        measured = await measure_taskiq(server.url, python, 16)

    assert measured.jobs_per_s > 0


def test_a_report_says_what_was_missed_and_who_was_not_there() -> None:
    report = Report(
        name="x",
        metrics={"jobs_per_s": 1900.0, "cost_ms": 0.2},
        bounds={"jobs_per_s": (">=", 2000.0), "cost_ms": ("<=", 0.25)},
        left_out=("taskiq-redis, not installed",),
    )

    text = report.as_text().splitlines()

    assert [report.holds(metric) for metric in report.bounds] == [False, True]
    assert "MISSED, must be >= 2000" in text[1]
    assert "ok, must be <= 0.25" in text[2]
    assert text[3] == "  left out: taskiq-redis, not installed"


@pytest.mark.slow
def test_a_benchmark_answers_a_program_in_json() -> None:
    command = [sys.executable, "-m", "ops.cli", "bench"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    ran = subprocess.run([*command, "codec", "--json"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    unknown = subprocess.run([*command, "nothing"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(BENCHMARKS)
    said = orjson.loads(ran.stdout)
    assert said["name"] == "codec"
    assert set(said["metrics"]) == {"encode_ms", "decode_ms", "size_to_raw_ratio"}
    assert said["metrics"]["size_to_raw_ratio"] <= 1.05
    assert said["versions"]["python"]
    assert said["machine"]["cores"] >= 1
    assert unknown.returncode == 2
    assert "no benchmark 'nothing'" in unknown.stderr
