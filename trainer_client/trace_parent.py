"""The span in which a trainer submits a job, where it uses OpenTelemetry; nothing of that is imported for it."""

from __future__ import annotations

import sys

from pipeline.trace_context import SpanPlace


def current_traceparent() -> str:
    """The caller's current span, sampled or not; empty when it has none, or never loaded OpenTelemetry's API."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return SpanPlace(context.trace_id, context.span_id, bool(context.trace_flags.sampled)).traceparent
