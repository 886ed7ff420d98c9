"""A span of a trainer as a job message carries it: `traceparent` of W3C Trace Context, version 00 (docs/adr/0038-traces.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """Where a span is."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """As a message says it."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.is_sampled else 0:02x}"


def read_traceparent(text: str) -> SpanPlace | None:
    """The span that a message names; None when it names none, or says what is no `traceparent`."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    place = SpanPlace(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & _SAMPLED))
    return place if place.trace_id and place.span_id else None


def checked_traceparent(text: str) -> str:
    """The text, when it is empty or a `traceparent`.

    Raises:
        ValueError: it is neither.
    """
    if text and read_traceparent(text) is None:
        raise ValueError(
            "expected a traceparent of W3C Trace Context, 00-<32 hex digits>-<16 hex digits>-<2 hex digits> in lower case, neither "
            "id zero: leave it out, and the current span of OpenTelemetry is taken"
        )
    return text
