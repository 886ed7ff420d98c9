"""What can go wrong between us and an inference server.

ModelError                 (retryable: whether the same call can succeed later or elsewhere)
├── Overlong               prompt and answer do not fit the context; found before anything is sent; never retried
├── Retryable              server away, busy, paused, broken or too slow; nothing of the answer is believed
├── Refused                the server says the request is wrong (4xx); a retry would be refused again
│   └── Unsupported        it has no such route: another version, or a flag that is off
└── InvalidResponse        a 200 whose content contradicts itself or the request; never repaired, perhaps another server answers right
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pipeline.errors import RollstreamError

RetryReason = Literal["unreachable", "closed", "busy", "engine_paused", "engine_failed", "timeout", "aborted", "weights_changed"]


class ModelError(RollstreamError):
    """A model call that gave no answer."""

    retryable: ClassVar[bool] = False


class Overlong(ModelError):
    """The prompt leaves no room for one token in the model's context."""

    def __init__(self, prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(f"a prompt of {prompt_tokens:,} tokens leaves no room for an answer in a context of {max_model_len:,}")
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


class Retryable(ModelError):
    """The call may succeed later, or at another server.

    Args:
        reason: one of a closed list, for counters and decisions.
        server: base URL of the server.
        detail: what came, for people.
        status: HTTP status; 0 = no answer came.
        retry_after_s: what the server asked for, if it did.
    """

    retryable = True

    def __init__(self, reason: RetryReason, server: str, detail: str, *, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(f"model server {server}: {reason}" + (f" (HTTP {status})" if status else "") + f": {detail}")
        self.reason: RetryReason = reason
        self.server = server
        self.status = status
        self.retry_after_s = retry_after_s


class Refused(ModelError):
    """The server took the request for wrong; sending it again changes nothing."""

    def __init__(self, server: str, status: int, detail: str) -> None:
        super().__init__(f"model server {server} refused the request (HTTP {status}): {detail}")
        self.server = server
        self.status = status
        self.detail = detail


class Unsupported(Refused):
    """The server cannot do this at all: the route is not there, or switched off.

    Args:
        what: what was asked of it.
        remedy: how the server is started so that it can, for people.
    """

    def __init__(self, server: str, what: str, remedy: str, *, status: int = 404) -> None:
        super().__init__(server, status, f"it cannot {what}; {remedy}")


class InvalidResponse(ModelError):
    """An answer that cannot be believed: one check failed, so none of it enters a trajectory.

    Args:
        check: short name of the check, for counters.
        detail: what was expected and what came.
    """

    retryable = True

    def __init__(self, check: str, detail: str, *, server: str = "") -> None:
        super().__init__(f"invalid response{f' of {server}' if server else ''}: {check}: {detail}")
        self.check = check
        self.detail = detail
        self.server = server
