"""The SDK of OpenTelemetry as we use it: ids that are ours, a queue that is bounded, a thread that sends, and one word when that fails.

A collector that is away, slow or answers errors costs spans and nothing else (docs/adr/0038-traces.md, decision 8). What the SDK itself
logs is not written: it may quote headers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from pipeline.process import software_version
from workers.settings import WorkerSettings
from workers.stages.traces.traces import Traces

log = structlog.get_logger(__name__)


class Ids(RandomIdGenerator):
    """Random ids, but for the next span when somebody said which. One thread makes spans, that of the event loop."""

    next_trace_id = 0
    next_span_id = 0

    def generate_trace_id(self) -> int:
        """The one that was said, once."""
        said, self.next_trace_id = self.next_trace_id, 0
        return said or super().generate_trace_id()

    def generate_span_id(self) -> int:
        """The one that was said, once."""
        said, self.next_span_id = self.next_span_id, 0
        return said or super().generate_span_id()


class Told(SpanExporter):
    """Sends by another exporter, and says once when spans are not taken, and once when they are again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends a batch; called by the thread that sends."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                log.warning(
                    "spans_not_taken",
                    spans=len(spans),
                    what="the collector of traces is away, slow or refuses; jobs go on without",
                    do="look at the address and the headers in OTEL_EXPORTER_OTLP_*, and at the collector",
                )
            self._lost += len(spans)
        elif self._lost:
            log.info("spans_taken_again", lost=self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        """Ends what is in flight."""
        self._exporter.shutdown()


def opened(worker: WorkerSettings) -> Traces:
    """Where the spans of this process go.

    Raises:
        ValueError, OSError: a variable of OpenTelemetry cannot be used.
    """
    said = logging.getLogger("opentelemetry")
    said.propagate = False
    said.addHandler(logging.NullHandler())
    resource = Resource.create({"service.instance.id": worker.consumer, "service.version": software_version()})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "rollstream"}))
    ids = Ids()
    provider = TracerProvider(id_generator=ids, resource=resource, shutdown_on_exit=False)
    processor = BatchSpanProcessor(Told(OTLPSpanExporter()))
    provider.add_span_processor(processor)
    log.info("traces_are_sent", worker=worker.consumer)
    return Traces(provider, ids, processor.shutdown, node=worker.node, worker=worker.consumer)
