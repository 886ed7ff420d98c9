"""The error tree of the contract and the queue.

    RollstreamError
    ├── InvalidRequest        what a caller asked for cannot be done; names the field and what was expected
    │   └── IdTaken             another request has this id
    ├── QueueFull             not accepted now; `retry_after_s` and `why` say when and what to do
    ├── RunClosed             the run is closed, cancelled or unknown
    │   └── RunLost             Redis lost that this trainer has the run
    ├── StaleIncarnation      a newer trainer took the run over
    ├── DamagedBody           bytes that are no message of ours; keeps the bytes
    ├── NewerMessage          a message of a higher major version than this process reads
    ├── BodyTooLarge          a body above the payload bound; refused before it is sent
    ├── BrokerError           Redis: could not be reached, refused, or answered what no script of ours answers
    │   ├── BrokerUnreachable   no contact; a retry can help
    │   ├── BrokerMisused       wrong type of key, wrong server settings, wrong layout: a retry cannot help
    │   └── EmbeddedServerError the embedded server did not come up (`pipeline/embedded/errors.py`)
    ├── FolderError           a folder cannot serve its purpose (`pipeline/folders.py`)
    ├── LeaseLost             this attempt is not the current one any more; its output is dropped
    └── JobCancelled          the job was cancelled; `reason` says why

Each class names the boundary that broke; details are fields, never text to parse. A failed rollout is not an exception here:
it is data (`messages.Failure`), made in one place (`workers/stages`).
"""

from __future__ import annotations


class RollstreamError(Exception):
    """Base of every error that Rollstream raises on purpose."""


class InvalidRequest(RollstreamError):
    """A request that can never succeed as it stands.

    Args:
        message: what was expected, what came, what to do.
        field: dotted path of the offending field, empty when it is the whole request.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class IdTaken(InvalidRequest):
    """Another request was submitted under this id.

    Args:
        name: the id, as its submitter calls it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"job {name!r} was asked for with another request: choose another id, or send the same request again", field="id")
        self.name = name


class QueueFull(RollstreamError):
    """The queue does not take more now; try again after `retry_after_s` seconds."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(f"not accepted: {why}; try again in {retry_after_s:.1f} s")
        self.why = why
        self.retry_after_s = retry_after_s


class RunClosed(RollstreamError):
    """The run does not exist, was closed, or was cancelled."""

    def __init__(self, run: str, state: str) -> None:
        super().__init__(f"run {run!r} is {state}: connect to it first, or choose another run id")
        self.run = run
        self.state = state


class RunLost(RunClosed):
    """Redis does not have the run, or went back too far: before this trainer took it, more steps than it remembers, or old prompts."""

    def __init__(self, run: str, what: str) -> None:
        RollstreamError.__init__(
            self,
            f"run {run!r}: Redis does not have {what}: it lost its last writes, in a failover or a crash, or was set up anew. Connect "
            "again with resume=run.state_dict(), or with the state of a checkpoint: the run goes on from there",
        )
        self.run = run
        self.state = "unknown"


class StaleIncarnation(RollstreamError):
    """Another trainer connected to this run later; this one may not change it any more."""

    def __init__(self, run: str, mine: int, current: str) -> None:
        super().__init__(
            f"run {run!r}: incarnation {mine} is fenced off, {current} is current: another trainer took the run over; end this one, or "
            "connect again to take it back"
        )
        self.run = run
        self.mine = mine
        self.current = current


class DamagedBody(RollstreamError):
    """Bytes that cannot be decoded as the message they should be.

    Args:
        why: what the decoder met.
        body: the bytes as they came, kept for the dead letter.
    """

    def __init__(self, why: str, body: bytes) -> None:
        super().__init__(f"damaged body of {len(body)} bytes: {why}")
        self.why = why
        self.body = body


class NewerMessage(RollstreamError):
    """A message written by a higher major version; this process must hand it back and be upgraded."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"message of schema {found}, this process reads up to {known}: upgrade it")
        self.found = found
        self.known = known


class BodyTooLarge(RollstreamError):
    """A body above the payload bound."""

    def __init__(self, what: str, n_bytes: int, max_bytes: int) -> None:
        super().__init__(f"{what} has {n_bytes:,} bytes, the bound is {max_bytes:,}")
        self.what = what
        self.n_bytes = n_bytes
        self.max_bytes = max_bytes


class BrokerError(RollstreamError):
    """Redis did not do what was asked."""


class BrokerUnreachable(BrokerError):
    """No contact with Redis; the same call may succeed later."""


class BrokerMisused(BrokerError):
    """Redis is there, but set up or filled in a way Rollstream cannot work with."""


class LeaseLost(RollstreamError):
    """The attempt that did this work is not the current one; drop its output and free what it holds."""

    def __init__(self, job: str, attempt: int) -> None:
        super().__init__(f"lease of job {job} attempt {attempt} is lost: another attempt has it, or it has ended")
        self.job = job
        self.attempt = attempt


class JobCancelled(RollstreamError):
    """The job was cancelled while this attempt held it."""

    def __init__(self, job: str, reason: str) -> None:
        super().__init__(f"job {job} was cancelled: {reason}")
        self.job = job
        self.reason = reason
