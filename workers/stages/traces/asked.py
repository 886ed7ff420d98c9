"""Whether this worker is to send spans, by the standard variables of OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pipeline.errors import RollstreamError
from workers.settings import WorkerSettings

if TYPE_CHECKING:
    from workers.stages.traces.traces import Traces

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
INSTALL = "pip install 'rollstream[traces]'"
_NEEDED = frozenset({"opentelemetry", "google", "requests"})


class TracesImpossible(RollstreamError):
    """Spans were asked for, and this worker cannot send them."""


def asked_for(environ: Mapping[str, str]) -> str:
    """The variable that asks for spans; empty when nobody does.

    Raises:
        TracesImpossible: they are to be sent in a way that we do not have.
    """
    asks = next((name for name in ENDPOINTS if environ.get(name, "").strip()), "")
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none"
    if not asks or is_off:
        return ""
    said = next((name for name in PROTOCOLS if environ.get(name, "").strip()), "")
    if said and environ[said].strip() != PROTOCOL:
        raise TracesImpossible(
            f"{said} asks for {environ[said].strip()[:40]!r}, and traces are sent as {PROTOCOL}: set {PROTOCOLS[0]}={PROTOCOL} and name "
            f"the collector's address for HTTP in {ENDPOINTS[0]}, such as http://127.0.0.1:4318/v1/traces"
        )
    return asks


@asynccontextmanager
async def asked_traces(worker: WorkerSettings, environ: Mapping[str, str] = os.environ) -> AsyncIterator[Traces | None]:
    """Where the spans of this process go, until they are not asked for: None.

    Raises:
        TracesImpossible: the packages are not there, or the variables cannot be used.
    """
    asks = asked_for(environ)
    if not asks:
        yield None
        return
    try:
        from workers.stages.traces.sending import opened
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise TracesImpossible(f"{asks} asks for traces, and their packages are not installed: {INSTALL}, or unset it") from missing
    try:
        traces = opened(worker)
    except (ValueError, OSError) as error:
        raise TracesImpossible(f"{asks} asks for traces, and a variable of OpenTelemetry cannot be used: {error}") from error
    try:
        yield traces
    finally:
        await traces.close()
