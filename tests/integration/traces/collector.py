"""A collector of traces: takes OTLP over HTTP on loopback, keeps what came, and can be slow or answer errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

Behaviour = Literal["takes", "refuses", "hangs"]
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span that came."""

    name: str
    trace_id: str
    """Hexadecimal, as the other ids."""
    span_id: str
    parent_id: str
    """Empty = none."""
    began_ns: int
    ended_ns: int
    is_error: bool
    attributes: Mapping[str, object]
    resource: Mapping[str, object]


@dataclass(slots=True)
class Collector:
    """What came."""

    endpoint: str
    """For `OTEL_EXPORTER_OTLP_ENDPOINT`."""
    bodies: list[bytes] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)

    @property
    def spans(self) -> list[Span]:
        """All that came so far."""
        return [span for body in [*self.bodies] for span in _spans(body)]


@contextmanager
def collecting(behaviour: Behaviour = "takes") -> Iterator[Collector]:
    """A collector of its own; one that hangs lets go when it ends."""
    ends = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.bodies.append(body)
            collector.authorizations.add(self.headers.get("Authorization", ""))
            if behaviour == "hangs":
                ends.wait(LIMIT_S)
            self.send_response(200 if behaviour == "takes" and self.path == "/v1/traces" else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="collector")
        thread.start()
        try:
            yield collector
        finally:
            ends.set()
            server.shutdown()
            thread.join()


def _spans(body: bytes) -> Iterator[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    for group in request.resource_spans:
        resource = {pair.key: _value(pair.value) for pair in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Span(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                    attributes={pair.key: _value(pair.value) for pair in span.attributes},
                    resource=resource,
                )


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    return None if kind is None else getattr(value, kind)
