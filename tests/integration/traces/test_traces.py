"""Spans of real worker processes at a collector; invariants of docs/adr/0038-traces.md by their numbers."""

from __future__ import annotations

import json
import signal
import socket
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from ops.child_processes import Child
from pipeline.messages import Outcome, Stage
from pipeline.testing import QueueAudit, wait_until
from tests.faults.math_fleet import RUN, MathFleet, ended, math_fleet
from tests.integration.traces.collector import Span, collecting
from tests.secret_words import a_secret, words_in
from trainer_client import JobRequest, connect
from workers.stages.traces.ids import attempt_span_id, job_span

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(240)]
PATIENCE_S = 60.0
QUICK = {"ROLLSTREAM_LEASE_S": "30", "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}


def a_request(number: int, name: str, *, traceparent: str = "", tools: bool = True) -> JobRequest:
    """A sum, in words that no attribute of a span would have by chance."""
    prompt = {"question": f"What is {number} plus {number + 1}?", "answer": str(2 * number + 1)}
    return JobRequest(task="math", prompt=prompt, id=name, options={"tools": tools}, traceparent=traceparent)


async def drained(fleet: MathFleet) -> None:
    """All workers are told to end, and end well."""
    for child in fleet.workers.values():
        child.asked_to_stop = True
        child.process.terminate()
    for child in fleet.workers.values():
        await ended(child, PATIENCE_S)
        assert child.exit_code == 0, child.log.read_text()


def by_job(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Spans of each job with attempts, by the name that it was asked for with."""
    found = defaultdict(list)
    for span in spans:
        if job := span.attributes.get("rollstream.job"):
            found[str(job).removeprefix(f"{RUN}.")].append(span)
    return found


async def test_the_spans_of_a_job_are_one_trace_with_its_trainer_above_and_its_attempts_apart() -> None:
    """Invariants 2, 3 and 5, and a sampler's no that came with the job."""
    provider, key = TracerProvider(shutdown_on_exit=False), a_secret("collector-key", may_be_in_environments=True)
    with collecting() as collector:
        variables = {
            **QUICK,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{key}",
        }
        async with math_fleet(tuple(Stage), **variables) as fleet, connect(fleet.settings, run=RUN) as run:
            incarnation, audit = run.incarnation, QueueAudit(fleet.client, fleet.keys)
            with provider.get_tracer("trainer").start_as_current_span("step 7") as step:
                below = await run.submit(a_request(1, "below"))
            unasked = f"00-{7:032x}-{8:016x}-00"
            alone = await run.submit([*(a_request(n, f"alone{n}") for n in range(2, 6)), a_request(6, "left-out", traceparent=unasked)])
            results = [await job.result(PATIENCE_S) for job in (below, *alone)]

            model = next(child for child in fleet.children.children if child.name == "model").process
            model.send_signal(signal.SIGSTOP)
            try:
                again = await run.submit(a_request(9, "again"))

                async def is_running() -> bool:
                    told = await audit.job(again.id)
                    return (told["st"], told["stage"]) == ("running", "run")

                await wait_until(is_running, "the job runs", timeout_s=PATIENCE_S)
                fleet.workers[Stage.RUN].asked_to_stop = True
                fleet.workers[Stage.RUN].process.terminate()
                await ended(fleet.workers[Stage.RUN], PATIENCE_S)
            finally:
                model.send_signal(signal.SIGCONT)
            fleet.start(Stage.RUN)
            results.append(await again.result(PATIENCE_S))
            await drained(fleet)
            logs = "".join(child.log.read_text() for child in fleet.children.children)

    assert {result.outcome for result in results} <= {Outcome.OK, Outcome.MODEL_FAILURE}
    jobs = by_job(collector.spans)
    assert set(jobs) == {"below", "alone2", "alone3", "alone4", "alone5", "again"}
    for name, spans in jobs.items():
        place = job_span(RUN, incarnation, f"{RUN}.{name}")
        context = step.get_span_context()
        trace = f"{context.trace_id if name == 'below' else place.trace_id:032x}"
        (job,) = (span for span in spans if span.name == "job")
        assert (job.trace_id, job.span_id) == (trace, f"{place.span_id:016x}")
        assert job.parent_id == (f"{context.span_id:016x}" if name == "below" else "")
        attempts = sorted((span for span in spans if span.name != "job"), key=lambda span: int(str(span.attributes["rollstream.attempt"])))
        ends = [(span.name, span.attributes["rollstream.end"]) for span in attempts]
        assert ends[-3:] == [("init", "handed_off"), ("run", "handed_off"), ("eval", job.attributes["rollstream.outcome"])]
        # its sandbox is made anew, more than once where no RUN worker is there yet to take it
        assert ends[:2] == [("init", "handed_off"), ("run", "back")] if name == "again" else len(ends) == 3
        for at, span in enumerate(attempts, start=1):
            assert (span.trace_id, span.parent_id, span.attributes["rollstream.attempt"]) == (trace, job.span_id, at)
            assert span.span_id == f"{attempt_span_id(RUN, incarnation, f'{RUN}.{name}', at):016x}"
            assert span.attributes["rollstream.node"] == "n1"
            assert isinstance(span.attributes["rollstream.wait_ms"], int)
            assert span.began_ns <= span.ended_ns <= job.ended_ns
        assert job.began_ns < job.ended_ns
        assert job.attributes["rollstream.outcome"] in ("ok", "model_failure")
        assert job.attributes["rollstream.reward"] in (0.0, 1.0)

    runs = {span.span_id: span for spans in jobs.values() for span in spans if span.name == "run"}
    calls = [span for span in collector.spans if "gen_ai.operation.name" in span.attributes]
    assert {(runs[call.parent_id].trace_id) for call in calls} == {run.trace_id for run in runs.values()}
    asked = [call for call in calls if call.attributes["gen_ai.operation.name"] == "text_completion" and not call.is_error]
    assert all(call.attributes["gen_ai.usage.output_tokens"] and call.attributes["gen_ai.response.finish_reasons"] for call in asked)
    sampled = sum(result.record.sampled_tokens for result in results if not result.job.endswith("left-out"))
    assert sum(int(str(call.attributes["gen_ai.usage.output_tokens"])) for call in asked) == sampled
    used = {
        (call.name, call.attributes["rollstream.fault"]) for call in calls if call.attributes["gen_ai.operation.name"] == "execute_tool"
    }
    assert ("execute_tool python", False) in used
    assert used <= {("execute_tool python", False), ("execute_tool python", True), ("execute_tool", True)}
    assert {span.resource["service.name"] for span in collector.spans} == {"rollstream"}
    assert {span.resource["service.instance.id"] for span in collector.spans} == {f"{stage.value}-n1-0" for stage in Stage}

    assert collector.authorizations == {f"Bearer {key}"}
    everything = b"".join(collector.bodies)
    assert not words_in(everything)
    assert not words_in(logs)
    assert not [word for word in (b"What is", b"plus", b"print", b"boxed") if word in everything]


async def test_jobs_end_and_workers_stop_whatever_becomes_of_their_collectors() -> None:
    """Invariants 1 and 6: away, silent and refusing; then a worker that nobody asks, and one that is asked and has not what it takes."""
    with collecting("hangs") as silent, collecting("refuses") as refusing, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and listens never
        away = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with math_fleet((), **QUICK) as fleet, connect(fleet.settings, run=RUN) as run:
            endpoints = {Stage.INIT: away, Stage.RUN: silent.endpoint, Stage.EVAL: refusing.endpoint}
            for stage, endpoint in endpoints.items():
                fleet.start(stage, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
            for number in (1, 2):  # the second is after they have warned, and its spans are not taken either
                job = await run.submit(a_request(number, f"j{number}", tools=False))
                assert (await job.result(PATIENCE_S)).outcome in (Outcome.OK, Outcome.MODEL_FAILURE)
                for child in fleet.workers.values():
                    await wait_until(partial(has_warned, child), f"{child.name} says that its spans are not taken", timeout_s=PATIENCE_S)
            await drained(fleet)
            assert [warnings(child) for child in fleet.workers.values()] == [1, 1, 1]
            assert refusing.spans
            assert silent.spans

            fleet.start(Stage.EVAL, PYTHONPROFILEIMPORTTIME="1")
            unasked = fleet.workers[Stage.EVAL]
            await wait_until(lambda: "worker_takes" in unasked.log.read_text(), "a worker that nobody asks serves", timeout_s=PATIENCE_S)
            loaded = imported(unasked)
            assert "workers.stages.traces.asked" in loaded
            # redis-py imports `opentelemetry.sdk.metrics` by itself, where it is installed
            assert not [
                name for name in loaded if name.startswith(("opentelemetry.exporter", "opentelemetry.sdk.trace", "google.protobuf"))
            ]
            assert [name for name in loaded if name.startswith("workers.stages.traces.")] == ["workers.stages.traces.asked"]

            (fleet.folder / "hides").mkdir()
            (fleet.folder / "hides" / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry'] = None\n")
            fleet.start(Stage.EVAL, PYTHONPATH=str(fleet.folder / "hides"), OTEL_EXPORTER_OTLP_ENDPOINT=away)
            fleet.workers[Stage.EVAL].asked_to_stop = True
            await ended(fleet.workers[Stage.EVAL], PATIENCE_S)
            assert fleet.workers[Stage.EVAL].exit_code == 2
            assert "pip install 'rollstream[traces]'" in fleet.workers[Stage.EVAL].log.read_text()


def has_warned(child: Child) -> bool:
    return warnings(child) > 0


def warnings(child: Child) -> int:
    """How often it has said that its spans are not taken."""
    lines = [json.loads(line) for line in child.log.read_text().splitlines() if line.startswith("{")]
    return sum(line["event"] == "spans_not_taken" for line in lines)


def imported(child: Child) -> list[str]:
    """Modules that a process with PYTHONPROFILEIMPORTTIME has loaded."""
    lines = Path(child.log).read_text().splitlines()
    return sorted({line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")})
