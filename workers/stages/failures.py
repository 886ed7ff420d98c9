"""The one place that turns what was raised in a stage into data: a `Failure`, and with it the end of the attempt.

    what was raised                          boundary   again?
    InvalidRequest, DamagedBody, BodyTooLarge  body     no: the job can never succeed as it stands
    NewerMessage, NoSandboxes                body       handed back uncounted, and this worker rests: another can serve it
    NodeUnavailable                          sandbox    the same; in EVAL NotServedHere, too: any node may have been given the job
    SandboxError                             sandbox    as the error says; in RUN from INIT. EnvironmentGone, SandboxTaken: a loss, from
                                                        INIT, or in EVAL from there
    ModelError                               model      as the error says
    RendererUnavailable                      model      yes: another worker may have the tokenizer, or the package
    BlobError                                blobs      yes, unless the array is too large
    GraderError                              grader     yes; of a kind that no answer can cause: service
    BrokerUnreachable                        broker     handed back uncounted
    BrokerMisused, an error of Redis         broker     yes
    TimeoutError of a stage's limit          stage      yes
    anything else                            handler    yes

In EVAL `judging.py` stands before this: what it finds to be the answer's doing is a grade, and no failure.

The handler's hook for the stage may turn a failure into an end of the job. `JobCancelled`, `LeaseLost` and `CancelledError` are no
failures. A group of one error is that error.
"""

from __future__ import annotations

import traceback

import redis
import structlog

from pipeline.attempts import End, GivenUp, Settled
from pipeline.blobs import BlobError, BlobTooLarge
from pipeline.engines.errors import ModelError
from pipeline.errors import BodyTooLarge, BrokerError, BrokerUnreachable, DamagedBody, InvalidRequest, NewerMessage
from pipeline.messages import Failure, Outcome, Settlement, Stage
from workers.agent.renderers.errors import RendererUnavailable
from workers.graders.errors import GraderError
from workers.handlers.base import Ended, EnvironmentGone, NoSandboxes, StageContext, TaskHandler, failed_hook
from workers.sandbox.errors import NodeUnavailable, NotServedHere, SandboxError, SandboxTaken

log = structlog.get_logger(__name__)

TRACEBACK_LINES = 30
UNFIT = (NewerMessage, NoSandboxes, NodeUnavailable)
"""It is this worker that cannot: another gets the job, uncounted."""


class HandlerExited(Exception):
    """A handler called `sys.exit`: the end of its attempt, not of the worker."""


def the_one_error(error: BaseException) -> BaseException:
    """What a group of tasks failed of, when that is one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def failure_of(stage: Stage, error: Exception) -> Failure:
    """What an exception means."""
    boundary, retryable, kind = "handler", True, ""
    if isinstance(error, InvalidRequest | DamagedBody | BodyTooLarge):
        boundary, retryable = "body", False
    elif isinstance(error, SandboxError):
        boundary, retryable, kind = "sandbox", error.retryable, error.failure_kind
    elif isinstance(error, ModelError):
        boundary, retryable = "model", error.retryable
    elif isinstance(error, RendererUnavailable):
        boundary = "model"
    elif isinstance(error, BlobError):
        boundary, retryable = "blobs", not isinstance(error, BlobTooLarge)
    elif isinstance(error, GraderError):
        boundary = "grader" if error.may_be_the_answers_doing else "service"
    elif isinstance(error, BrokerError | redis.RedisError):
        boundary = "broker"
    elif isinstance(error, TimeoutError):
        boundary = "stage"
    known = boundary != "handler"
    trace = "" if known else "".join(traceback.format_exception(error)[-TRACEBACK_LINES:])
    return Failure(
        stage=stage,
        boundary=boundary,
        kind=kind or type(error).__name__,
        message=str(error) or type(error).__name__,
        retryable=retryable,
        traceback=trace,
    )


def described(failure: Failure) -> str:
    """The reason that is kept with the job."""
    return f"{failure.boundary}: {failure.kind}: {failure.message}"


def kind_of(reason: str) -> str:
    """`<boundary>: <kind>` of a reason that `described` made; empty for any other."""
    parts = reason.split(": ", 2)
    return ": ".join(parts[:2]) if len(parts) == 3 else ""


def end_of(stage: Stage, error: Exception, handler: TaskHandler | None, context: StageContext | None) -> End:
    """How an attempt ends that raised `error`."""
    if isinstance(error, UNFIT) or (stage is Stage.EVAL and isinstance(error, NotServedHere)):
        return GivenUp("back", str(error), is_unfit=True)
    failure = failure_of(stage, error)
    job = context.spec.job if context else ""
    if failure.boundary == "handler":
        log.error("stage_raised", stage=stage.value, job_id=job, kind=failure.kind, error=failure.message, traceback=failure.traceback)
    shaped: Failure | Ended = failure
    if handler is not None and context is not None:
        shaped = _shaped(handler, stage, context, failure)
    if isinstance(shaped, Ended):
        return _ended(shaped)
    why = described(shaped)
    if isinstance(error, BrokerUnreachable):
        return GivenUp("back", why)
    if not shaped.retryable:
        return GivenUp("dead", why)
    if isinstance(error, EnvironmentGone | SandboxTaken):
        return GivenUp("lost", why, "" if stage is Stage.EVAL else Stage.INIT.value)  # what EVAL had was its own
    return GivenUp("failed", why, Stage.INIT.value if stage is Stage.RUN and isinstance(error, SandboxError) else "")


def _shaped(handler: TaskHandler, stage: Stage, context: StageContext, failure: Failure) -> Failure | Ended:
    """What the hook makes of a failure. A hook that fails itself, or answers neither, must not hide what it was asked about."""
    try:
        answer: object = failed_hook(handler, stage)(context, failure)
    except Exception:
        log.exception("hook_raised", stage=stage.value, job_id=context.spec.job)
        return failure
    if not isinstance(answer, Failure | Ended):
        log.error("hook_not_usable", stage=stage.value, job_id=context.spec.job, answer=repr(answer)[:200])
        return failure
    return answer


def _ended(end: Ended) -> End:
    """Promise 7 holds for hooks too: only what the policy did has a reward, and that always has one."""
    reward = end.reward
    if end.outcome is Outcome.MODEL_FAILURE and reward is None:
        reward = 0.0
    if end.outcome is Outcome.OK and reward is None:
        return GivenUp("failed", f"the hook ended the job as ok without a reward: {end.reason}")
    if end.outcome not in (Outcome.OK, Outcome.MODEL_FAILURE):
        reward = None
    stop = getattr(end.stop, "value", end.stop)
    return Settled(Settlement(outcome=end.outcome, reason=end.reason, reward=reward, stop=stop))
