"""The spans of one attempt, and of its job when that ended with it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.attempts import Awaiting, End, GivenUp, JobControl, Settled
from pipeline.messages import JobSpec, Outcome, Stage
from pipeline.trace_context import SpanPlace
from workers.stages.bodies import JobTimes
from workers.stages.failures import kind_of
from workers.stages.measures import end_word
from workers.stages.traces.ids import attempt_span_id
from workers.tools.base import ToolUse

if TYPE_CHECKING:
    from workers.stages.concurrency.limited_model import PoolModel
    from workers.stages.traces.traces import Traces

Attributes = Mapping[str, str | bool | int | float | tuple[str, ...]]
BROKEN = frozenset(("failed", "lost", "dead"))
"""Ends of attempts that are errors."""
_KIND = re.compile(r"[a-z]{1,16}: [A-Za-z_][A-Za-z0-9_]{0,63}")
"""A boundary and a class; the rest of a reason may quote what a model wrote."""
_WORD = re.compile(r"[a-z_]{1,32}")


class Attempt:
    """One attempt that is traced.

    Args:
        job: the place of its span `job`.
        parent: the trainer's span; None = it brought none.
        times: None = Redis did not say.
    """

    def __init__(
        self,
        traces: Traces,
        control: JobControl,
        spec: JobSpec,
        stage: Stage,
        job: SpanPlace,
        parent: SpanPlace | None,
        times: JobTimes | None,
        who: Attributes,
    ) -> None:
        self._traces = traces
        self._stage = stage
        self._job = job
        self._parent = parent
        self._times = times
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._began_ns = self.at(control.started_s)
        self._place = SpanPlace(job.trace_id, attempt_span_id(spec.run, control.begun.incarnation, spec.job, spec.attempt), is_sampled=True)
        self._what: Attributes = {
            "rollstream.run": spec.run,
            "rollstream.job": spec.job,
            "rollstream.group": spec.group,
            "rollstream.member": spec.member,
            "rollstream.task": spec.template.task,
            "rollstream.attempt": spec.attempt,
        }
        self._who = who

    def at(self, monotonic_s: float) -> int:
        """A time of the monotonic clock as one of the day, in ns. The offset is the attempt's: its spans keep their order over a jump."""
        return int(monotonic_s * 1e9) + self._offset_ns

    def call(self, name: str, began_s: float, attributes: Attributes, *, error: str = "", is_client: bool = False) -> None:
        """A call of this attempt has ended, now."""
        self._traces.make(
            name,
            below=self._place,
            began_ns=self.at(began_s),
            ended_ns=self.at(time.monotonic()),
            attributes=attributes,
            is_client=is_client,
            error=error,
        )

    def used_tool(self, use: ToolUse) -> None:
        """A tool call has ended."""
        named: Attributes = {"gen_ai.tool.name": use.name} if use.name else {}
        attributes: Attributes = {"gen_ai.operation.name": "execute_tool", "rollstream.fault": use.is_fault, **named}
        self.call(f"execute_tool {use.name}".rstrip(), use.began_s, attributes, error=use.error)

    def model(self, way: PoolModel, model: str) -> PoolModel:
        """The way of this attempt to its model, with a span a call."""
        from workers.stages.traces.traced_model import TracedModel

        return TracedModel(way, self, model)

    def ended(self, end: End | None) -> None:
        """Its work has ended; None = another has the job."""
        word = end_word(end)
        waited = {} if self._times is None else {"rollstream.wait_ms": self._times.wait_ms}
        error = (error_class(str(end.why)) if isinstance(end, GivenUp) else "") or word
        self._traces.make(
            self._stage.value,
            below=self._job,
            began_ns=self._began_ns,
            ended_ns=self.at(time.monotonic()),
            attributes={**self._what, **self._who, "rollstream.stage": self._stage.value, "rollstream.end": word, **waited},
            span_id=self._place.span_id,
            error=error if word in BROKEN else "",
        )

    def answered(self, end: End, word: str) -> None:
        """Redis has answered for its end: if the job ended with it, that is its span."""
        outcome = job_outcome(end, word)
        if not outcome:
            return
        said = end.settlement if isinstance(end, Settled) and not word.startswith("cx:") else None
        found: dict[str, str | bool | int | float | tuple[str, ...]] = {}
        if said is not None:
            found = {"rollstream.sampled_tokens": said.sampled_tokens, "rollstream.turns": said.turns}
            if said.reward is not None:
                found["rollstream.reward"] = float(said.reward)
            if _WORD.fullmatch(said.stop):
                found["rollstream.stop"] = said.stop
        since_ms = 0 if self._times is None else self._times.since_accepted_ms
        self._traces.make(
            "job",
            below=self._parent,
            began_ns=self._began_ns - since_ms * 1_000_000,
            ended_ns=self.at(time.monotonic()),
            attributes={**self._what, "rollstream.outcome": outcome, **found},
            trace_id=self._job.trace_id,
            span_id=self._job.span_id,
            error=outcome if outcome == Outcome.INFRA_FAILURE.value else "",
        )


def job_outcome(end: End, word: str) -> str:
    """How a job ended with an attempt, by what Redis answered for its end; empty when it goes on, or is another's."""
    if word.startswith("cx:"):
        return (Outcome.EXPIRED if word == "cx:deadline" else Outcome.CANCELLED).value
    if isinstance(end, Awaiting):
        return "awaiting" if word in ("ok", "again") else ""
    if isinstance(end, Settled):
        return end.settlement.outcome.value if word in ("ok", "again") else ""
    return Outcome.INFRA_FAILURE.value if isinstance(end, GivenUp) and word == "dead" else ""


def error_class(why: str) -> str:
    """`<boundary>: <class>` of the reason of an attempt that was given up; empty when it names none."""
    kind = kind_of(why)
    return kind if _KIND.fullmatch(kind) else ""
