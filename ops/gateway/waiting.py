"""How a call waits for its job, and what ends the wait: the result, its time, the closed door, the gateway's end, or the client's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aiohttp import web

from ops.gateway.refusals import Refusal, refusal_of
from ops.gateway.state import Gateway
from ops.gateway.work import Wanted
from pipeline.errors import IdTaken, StaleIncarnation
from trainer_client import ClientClosed, Job, Result

CANCEL_HEADER = "X-Cancel-On-Disconnect"
LONGEST_WAIT_S = 600.0
YES, NO = ("1", "true", "yes"), ("0", "false", "no", "")


class Closed(Exception):
    """The door was closed while the call waited."""


async def submit_for_caller(
    gateway: Gateway, wanted: Sequence[Wanted], *, wait_s: float, by_process: bool, cancel_on_disconnect: bool
) -> list[Job]:
    """Puts jobs into the queue. A client that goes meanwhile has submitted them; they are cancelled then where it asked for that.

    Raises:
        Refusal, IdTaken, InvalidRequest, QueueFull, RunClosed, StaleIncarnation: as `Work.submit`.
    """
    submission = gateway.work.submit(wanted, wait_s=wait_s, by_process=by_process)
    try:
        return await asyncio.shield(submission)
    except asyncio.CancelledError:
        if cancel_on_disconnect and not gateway.leaving.is_set():
            for one in wanted:
                cancel_later(gateway, gateway.work.full_id(one.request.id), after=submission)
        raise


def cancel_later(gateway: Gateway, job: str, *, after: asyncio.Task[list[Job]] | None = None) -> None:
    """Cancels a job whose caller has gone, unless another call of `/process` waits for it.

    Args:
        after: what is waited for first, however it ends.
    """

    async def cancel() -> None:
        if after is not None:
            await asyncio.wait((after,))
            if not after.cancelled() and isinstance(after.exception(), IdTaken):
                return  # the job under this id is another caller's
        await gateway.work.cancel(job)

    if gateway.door.jobs[job] <= 1:
        gateway.later(f"cancel-{job}", cancel())


async def wait_for_result(
    gateway: Gateway, job: str, timeout_s: float | None, *, closed: asyncio.Event | None = None, cancel_on_disconnect: bool = False
) -> Result:
    """The result of a job.

    Args:
        job: full id.
        closed: ends the wait with `Closed`.
        cancel_on_disconnect: whether the job is cancelled when the client goes.

    Raises:
        WaitTimeout: says what stands in the job's way.
        Refusal: 503, the gateway leaves; says where the result will be. 410, it was let go.
    """
    waits = {"result": asyncio.create_task(gateway.work.result(job, timeout_s), name=f"result-{job}")}
    ends = {"leaving": gateway.leaving, **({"closed": closed} if closed is not None else {})}
    signs = {name: asyncio.create_task(event.wait(), name=f"{name}-{job}") for name, event in ends.items()}
    try:
        await asyncio.wait((*waits.values(), *signs.values()), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if cancel_on_disconnect and not gateway.leaving.is_set():
            cancel_later(gateway, job)
        raise
    finally:
        unfinished = [task for task in (*waits.values(), *signs.values()) if not task.done()]
        for task in unfinished:
            task.cancel()
    result = waits["result"]
    if result.done():
        try:
            return result.result()
        except (StaleIncarnation, ClientClosed) as ended:
            raise gateway.goodbye(job, refusal_of(ended)) from None
    if gateway.leaving.is_set():
        raise gateway.goodbye(job)
    raise Closed


def wants_cancel(headers: Mapping[str, str]) -> bool:
    """Whether a call's header asks for its job's end with its own.

    Raises:
        Refusal: 422, it says neither yes nor no.
    """
    word = headers.get(CANCEL_HEADER, "").strip().lower()
    if word in (*YES, *NO):
        return word in YES
    raise Refusal(422, "invalid", f"expected true or false, got {word[:40]!r}", field=CANCEL_HEADER)


def wait_s_of(request: web.Request) -> float:
    """How long a call may wait, by its query.

    Raises:
        Refusal: 422, no number within the bounds.
    """
    text = request.query.get("wait_s", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise Refusal(422, "invalid", f"expected seconds from 0 to {LONGEST_WAIT_S:g}, got {text[:40]!r}", field="wait_s")
    return seconds


__all__ = ["CANCEL_HEADER", "LONGEST_WAIT_S", "Closed", "submit_for_caller", "wait_for_result", "wait_s_of", "wants_cancel"]
