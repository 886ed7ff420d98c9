"""Ids of traces, the trainer's span in a job message, and what may stand in a span (docs/adr/0038-traces.md)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from ops.gateway.work import Wanted
from pipeline import codec
from pipeline.attempts import Awaiting, End, GivenUp, HandedOff, Settled
from pipeline.errors import InvalidRequest
from pipeline.messages import Outcome, Prompt, Settlement
from pipeline.trace_context import SpanPlace, read_traceparent
from trainer_client import JobRequest
from trainer_client.trace_parent import current_traceparent
from workers.sandbox.local.environment import sandbox_environment
from workers.stages.traces.asked import TracesImpossible, asked_for
from workers.stages.traces.attempt import error_class, job_outcome
from workers.stages.traces.ids import attempt_span_id, job_span
from workers.stages.traces.traced_model import server_place

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BAD = [
    GOOD.upper(),
    GOOD + " ",
    GOOD + "-more",
    "01" + GOOD[2:],
    f"00-{0:032x}-b7ad6b7169203331-01",
    f"00-0af7651916cd43dd8448eb211c80319c-{0:016x}-01",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
    "x" * 100_000,
]
OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_ids_are_the_same_in_every_process_and_version() -> None:
    """Workers of two versions serve one job: what these say may never change."""
    assert job_span("run1", 1, "run1.a").traceparent == "00-358656d322f6d64564c5a65f8026dcc0-b89e23a284c54e81-01"
    assert f"{attempt_span_id('run1', 1, 'run1.a', 2):016x}" == "9d9e329392f21d99"


def test_incarnations_and_attempts_are_apart() -> None:
    places = {job_span(run, incarnation, "job") for run in ("a", "b") for incarnation in (1, 2)}

    assert len({place.trace_id for place in places}) == len({place.span_id for place in places}) == 4
    assert len({attempt_span_id("a", 1, "job", attempt) for attempt in range(100)}) == 100


def test_a_traceparent_is_read_as_it_was_written() -> None:
    place = SpanPlace(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_sampled=True)

    assert read_traceparent(GOOD) == place
    assert place.traceparent == GOOD
    assert read_traceparent(GOOD[:-2] + "fe") == SpanPlace(place.trace_id, place.span_id, is_sampled=False)


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:60])
def test_what_is_none_is_refused_at_submit_and_ignored_in_a_worker(text: str) -> None:
    assert read_traceparent(text) is None
    with pytest.raises(InvalidRequest, match="expected a traceparent of W3C Trace Context"):
        JobRequest(task="math", prompt={"question": "q"}, traceparent=text)


def test_a_prompt_of_an_older_version_has_none() -> None:
    assert codec.decode(Prompt, codec.encode(Prompt(id="p", data={}))).traceparent == ""
    assert codec.decode(Prompt, codec.encode(Prompt(id="p", data={}, traceparent=GOOD))).traceparent == GOOD


def test_a_request_that_is_sent_again_from_another_span_is_the_same_request() -> None:
    requests = [JobRequest(task="math", prompt={"question": "q"}, id="a", traceparent=text) for text in ("", GOOD)]

    assert len({Wanted.of(request).digest for request in requests}) == 1


def test_a_trainers_current_span_is_taken_sampled_or_not() -> None:
    assert current_traceparent() == ""
    for provider, flag in ((TracerProvider(shutdown_on_exit=False), "01"), (TracerProvider(ALWAYS_OFF, shutdown_on_exit=False), "00")):
        with provider.get_tracer("trainer").start_as_current_span("step"):
            context = trace.get_current_span().get_span_context()
            assert read_traceparent(current_traceparent()) == SpanPlace(context.trace_id, context.span_id, is_sampled=flag == "01")
            assert current_traceparent().endswith(flag)


@pytest.mark.parametrize(
    ("variables", "asks"),
    [
        ({}, ""),
        ({OTLP: " "}, ""),
        ({OTLP: "http://c:4318"}, OTLP),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, ""),
        ({OTLP: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ""),
        ({OTLP: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ""),
        ({OTLP: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, OTLP),
    ],
)
def test_traces_are_asked_for_by_the_standard_variables(variables: Mapping[str, str], asks: str) -> None:
    assert asked_for(variables) == asks


def test_another_protocol_is_refused_with_what_to_set() -> None:
    with pytest.raises(TracesImpossible, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"):
        asked_for({OTLP: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_a_sandbox_sees_none_of_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OTLP, "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.setenv(name, "http://c:4318")

    assert not [name for name in sandbox_environment("s", "/home", "/tmp", {"PATH": "/bin"}, {}) if name.startswith("OTEL")]


OK = Settlement(outcome=Outcome.OK)


@pytest.mark.parametrize(
    ("end", "word", "outcome"),
    [
        (Settled(OK), "ok", "ok"),
        (Settled(OK), "again", "ok"),
        (Settled(OK), "fenced", ""),
        (Settled(OK), "cx:redundant", "cancelled"),
        (GivenUp("back", ""), "cx:deadline", "expired"),
        (Awaiting(OK), "ok", "awaiting"),
        (GivenUp("failed", "why"), "retry", ""),
        (GivenUp("failed", "why"), "dead", "infra_failure"),
        (HandedOff(b""), "ok", ""),
        (HandedOff(b""), "node_gone", ""),
    ],
)
def test_a_job_has_ended_when_redis_says_so(end: End, word: str, outcome: str) -> None:
    assert job_outcome(end, word) == outcome


@pytest.mark.parametrize(
    ("why", "error"),
    [
        ("sandbox: SandboxStartError: no room", "sandbox: SandboxStartError"),
        ("handed back: the worker stops", ""),
        ("the model said: my secret: 42", ""),
        ("handler: not a class: text", ""),
        ("", ""),
    ],
)
def test_of_a_reason_only_boundary_and_class_are_told(why: str, error: str) -> None:
    assert error_class(why) == error


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("http://user:word@gpu7:8000/v1?key=word", {"server.address": "gpu7", "server.port": 8000}),
        ("https://[::1]/", {"server.address": "::1"}),
        ("unix:/run/llm", {"server.address": "/run/llm"}),
        ("http://h:99999999", {}),
        ("", {}),
    ],
)
def test_of_a_server_only_its_place_is_told(address: str, place: Mapping[str, object]) -> None:
    assert server_place(address) == place
