"""The one place that turns what was raised in a stage into data: a `Failure`, and with it the end of the attempt.

    what was raised                      boundary   again?
    InvalidRequest, DamagedBody          body       no: the job can never succeed as it stands
    NewerMessage                         body       handed back uncounted: an upgraded worker takes it
    SandboxError                         sandbox    as the error says; in RUN from INIT. EnvironmentGone counts as a loss
    ModelError                           model      as the error says
    GraderError                          grader     yes
    BrokerError                          broker     handed back uncounted
    TimeoutError of a stage's limit      stage      yes
    anything else                        handler    yes

The handler's hook for the stage may turn a failure into an end of the job. `JobCancelled`, `LeaseLost` and `CancelledError` are no
failures.
"""

from __future__ import annotations

import traceback

import structlog

from pipeline.attempts import End, GivenUp, Settled
from pipeline.errors import BrokerError, DamagedBody, InvalidRequest, NewerMessage
from pipeline.messages import Failure, Settlement, Stage
from workers.graders.errors import GraderError
from workers.handlers.base import Ended, EnvironmentGone, StageContext, TaskHandler, failed_hook
from workers.llm.errors import ModelError
from workers.sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

TRACEBACK_LINES = 30


def failure_of(stage: Stage, error: Exception) -> Failure:
    """What an exception means."""
    boundary, retryable = "handler", True
    if isinstance(error, InvalidRequest | DamagedBody):
        boundary, retryable = "body", False
    elif isinstance(error, SandboxError):
        boundary, retryable = "sandbox", error.retryable
    elif isinstance(error, ModelError):
        boundary, retryable = "model", error.retryable
    elif isinstance(error, GraderError):
        boundary = "grader"
    elif isinstance(error, BrokerError):
        boundary = "broker"
    elif isinstance(error, TimeoutError):
        boundary = "stage"
    known = boundary != "handler"
    trace = "" if known else "".join(traceback.format_exception(error)[-TRACEBACK_LINES:])
    return Failure(
        stage=stage,
        boundary=boundary,
        kind=type(error).__name__,
        message=str(error) or type(error).__name__,
        retryable=retryable,
        traceback=trace,
    )


def end_of(stage: Stage, error: Exception, handler: TaskHandler | None, context: StageContext | None) -> End:
    """How an attempt ends that raised `error`."""
    if isinstance(error, NewerMessage):
        return GivenUp("back", str(error))
    failure = failure_of(stage, error)
    job = context.spec.job if context else ""
    if failure.boundary == "handler":
        log.error("stage_raised", stage=stage.value, job_id=job, kind=failure.kind, error=failure.message, traceback=failure.traceback)
    shaped: Failure | Ended = failure
    if handler is not None and context is not None:
        shaped = failed_hook(handler, stage)(context, failure)
    if isinstance(shaped, Ended):
        settlement = Settlement(outcome=shaped.outcome, reason=shaped.reason, reward=shaped.reward, stop=shaped.stop.value)
        return Settled(settlement)
    why = f"{shaped.boundary}: {shaped.kind}: {shaped.message}"
    if shaped.boundary == "broker":
        return GivenUp("back", why)
    if not shaped.retryable:
        return GivenUp("dead", why)
    if isinstance(error, EnvironmentGone):
        return GivenUp("lost", why, Stage.INIT.value)
    return GivenUp("failed", why, Stage.INIT.value if stage is Stage.RUN and isinstance(error, SandboxError) else "")
