"""The spans of one worker: one an attempt, below it one a model call and one a tool call, and `job` when the job has ended.

    job       accepted ............................................ ended
    init          |----|                                        made by who worked on it, when that has ended
    run                     |---------------|
      text_completion         |--|    |--|
      execute_tool python         |--|
    eval                                        |---|

Times are those of this machine. `job` begins as long before its last attempt as Redis says that it was accepted before that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context

from pipeline.attempts import End, JobControl
from pipeline.messages import JobSpec, Stage
from pipeline.process import software_version
from pipeline.scripts.calls import Held
from pipeline.trace_context import SpanPlace, read_traceparent
from workers.stages.bodies import Bodies
from workers.stages.traces.attempt import Attempt, Attributes
from workers.stages.traces.ids import job_span

log = structlog.get_logger(__name__)

FLUSH_S = 3.0
"""What is left is sent for so long when a worker ends."""


class NextIds(Protocol):
    """Takes the ids of the next span."""

    next_trace_id: int
    next_span_id: int


class Traces:
    """Makes the spans of a process.

    Args:
        ids: the provider's.
        flush: sends what is left; may block.
    """

    def __init__(self, provider: TracerProvider, ids: NextIds, flush: Callable[[], None], *, node: str, worker: str) -> None:
        self._sampler = provider.sampler
        self._tracer = provider.get_tracer("rollstream", software_version())
        self._ids = ids
        self._flush = flush
        self._who: Attributes = {"rollstream.node": node, "rollstream.worker": worker}
        self._open: dict[tuple[str, int], Attempt] = {}

    async def begin(self, control: JobControl, spec: JobSpec, stage: Stage, bodies: Bodies) -> None:
        """An attempt has begun, and what it is to do is known. Nothing is kept of one that the sampler leaves out."""
        incarnation = control.begun.incarnation
        job, parent = job_span(spec.run, incarnation, spec.job), read_traceparent(spec.prompt.traceparent)
        if parent is not None:
            job = SpanPlace(parent.trace_id, job.span_id, is_sampled=True)
        said = self._sampler.should_sample(None if parent is None else _below(parent), job.trace_id, "job")
        if said.decision is not Decision.RECORD_AND_SAMPLE:
            return
        times = await bodies.times(spec.job, stage)
        attempt = Attempt(self, control, spec, stage, job, parent, times, self._who)
        self._open[spec.job, spec.attempt] = attempt
        control.on_answered = attempt.answered

    def of(self, held: Held) -> Attempt | None:
        """An attempt whose spans are made."""
        return self._open.get((held.job, held.attempt))

    def ended(self, control: JobControl, end: End | None) -> None:
        """The work of an attempt has ended; None = another has the job."""
        attempt = self._open.pop((control.held.job, control.held.attempt), None)
        if attempt is not None:
            attempt.ended(end)

    def make(
        self,
        name: str,
        *,
        below: SpanPlace | None,
        began_ns: int,
        ended_ns: int,
        attributes: Mapping[str, str | bool | int | float | tuple[str, ...]],
        trace_id: int = 0,
        span_id: int = 0,
        is_client: bool = False,
        error: str = "",
    ) -> None:
        """Makes a span that has ended. What cannot be one is left out, and told of: whoever asks has a job to end.

        Args:
            below: its parent; None = it has none.
            trace_id: of one without a parent.
            span_id: 0 = a random one.
            error: class of what it broke of; empty = it did not.
        """
        self._ids.next_trace_id, self._ids.next_span_id = trace_id, span_id
        try:
            span = self._tracer.start_span(
                name,
                context=Context() if below is None else _below(below),
                kind=SpanKind.CLIENT if is_client else SpanKind.INTERNAL,
                attributes={**attributes, **({"error.type": error} if error else {})},
                start_time=max(0, began_ns),
            )
            if error:
                span.set_status(StatusCode.ERROR)
            span.end(max(0, began_ns, ended_ns))
        except Exception:  # of the SDK, or of what a handler said: a span stops nothing
            log.exception("span_not_made", name=name)

    async def close(self) -> None:
        """Sends what is left, for at most `FLUSH_S`. The thread that cannot is left behind and ends with the process."""
        sending = threading.Thread(target=self._flush, name="last spans", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, FLUSH_S)


def _below(place: SpanPlace) -> Context:
    flags = TraceFlags(TraceFlags.SAMPLED if place.is_sampled else TraceFlags.DEFAULT)
    return set_span_in_context(NonRecordingSpan(SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=flags)), Context())
