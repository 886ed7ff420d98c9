"""Refusals: one shape for all of them, and which error becomes which code.

    {"detail": "<a sentence that says what to do>", "error": "<a word for programs>", "field": "...", "retry_after_s": 1.0}

`detail` is where the original's clients look. What is not foreseen is a 500 whose `detail` names nothing of ours but a number that the
log has too.
"""

from __future__ import annotations

import math
import secrets

import orjson
import structlog
from aiohttp import web

from ops.job.story import NoSuchJob
from pipeline.errors import (
    BodyTooLarge,
    BrokerError,
    BrokerUnreachable,
    DamagedBody,
    IdTaken,
    InvalidRequest,
    NewerMessage,
    QueueFull,
    RollstreamError,
    RunClosed,
    StaleIncarnation,
)
from pipeline.inference_pool.records import ServerTaken
from pipeline.logs import redact_text
from trainer_client import BodyMissing, ClientClosed, GroupsBroken, WaitTimeout

log = structlog.get_logger(__name__)

UNREACHABLE_RETRY_S = 2.0


class Refusal(Exception):
    """A call that is answered with something else than what was asked for.

    Args:
        status: HTTP code.
        error: a word for programs.
        detail: a sentence that says what to do.
        field: what in the request it is about; empty = nothing or all.
        retry_after_s: when the same request may do better; None = it will not.
        more: further fields.
    """

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        *,
        field: str = "",
        retry_after_s: float | None = None,
        more: dict[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s
        self.more = more or {}

    def response(self) -> web.Response:
        """As it is sent."""
        body: dict[str, object] = {"detail": self.detail, "error": self.error}
        if self.field:
            body["field"] = self.field
        headers = {}
        if self.retry_after_s is not None:
            body["retry_after_s"] = round(self.retry_after_s, 3)
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(
            status=self.status, body=orjson.dumps({**body, **self.more}), headers=headers, content_type="application/json", charset="utf-8"
        )


def refusal_of(error: Exception) -> Refusal:
    """What an error of the pipeline means to an HTTP client."""
    match error:
        case Refusal():
            return error
        case StaleIncarnation():
            return Refusal(
                503,
                "fenced",
                f"another client took the run {error.run!r} over, so this gateway ends: ask the one that took it, or give each a run of "
                "its own (--run)",
            )
        case RunClosed():
            return Refusal(
                503, "run_closed", f"the run {error.run!r} is {error.state} and takes no work: start the gateway with another --run"
            )
        case ClientClosed():
            return Refusal(
                503, "draining", "the gateway is ending: jobs go on, their results are at /jobs/ID of its next process", retry_after_s=5.0
            )
        case QueueFull():
            return Refusal(503, "queue_full", str(error), retry_after_s=error.retry_after_s)
        case BrokerUnreachable():
            return Refusal(
                503,
                "no_redis",
                f"Redis does not answer: {redact_text(str(error))}. Jobs stand; try again",
                retry_after_s=UNREACHABLE_RETRY_S,
            )
        case BodyTooLarge():
            return Refusal(413, "too_large", str(error))
        case ServerTaken():
            return Refusal(409, "server_taken", str(error), field="address")
        case IdTaken():
            return Refusal(409, "id_taken", str(error), field=error.field)
        case InvalidRequest():
            return Refusal(422, "invalid", str(error), field=error.field)
        case NoSuchJob():
            return Refusal(404, "no_such_job", str(error))
        case BodyMissing():
            return Refusal(404, "no_body", str(error))
        case GroupsBroken():
            return Refusal(502, "groups_broken", str(error))
        case WaitTimeout():
            return Refusal(504, "timeout", str(error), retry_after_s=1.0)
        case DamagedBody() | NewerMessage() | BrokerError():
            return _unforeseen(error, redact_text(str(error)))
        case RollstreamError():
            return _unforeseen(error, redact_text(str(error)))
    return _unforeseen(error, "an error that nobody foresaw")


def _unforeseen(error: Exception, what: str) -> Refusal:
    number = secrets.token_hex(4)
    log.error("call_failed", number=number, error=repr(error), exc_info=error)
    return Refusal(500, "internal", f"{what}: the gateway's log has more under {number}")


__all__ = ["Refusal", "refusal_of"]
