"""The jobs of a gateway: submitting, waiting, cancelling, and how long their results are kept.

Protocol. A job is submitted under its client's id; whoever asks for it waits on the future of the run's client, any number at once. Every
result of a single job passes `follow` once, those that an earlier process left among them, and is kept from then on. `sweep` lets go of
what has been delivered for long enough, and of what nobody fetched for longer; `let_go` is a client's word for it.

Invariants
    - A result is let go by these three alone, and never while an answer is made of it.
    - What is submitted again is the same request, or refused. A digest of the request is kept with its job in Redis, so that this holds at
      the gateway's next process too, and one of what its client sent alone: other settings of the gateway do not make it another request.
    - The bytes of open requests and the number of kept results are bounded. Delivered results go before a job is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
import structlog

from ops.gateway.refusals import Refusal
from ops.gateway.settings import GatewaySettings
from pipeline.errors import IdTaken, InvalidRequest
from pipeline.keys import PROMPT_ID
from pipeline.messages import CancelReason
from pipeline.scripts.calls import MAX_BATCH
from trainer_client import Job, JobRequest, Result, Run

log = structlog.get_logger(__name__)

DIGEST_BYTES = 12
"""Kept with each job; among the requests of one run no two meet by chance."""
MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.[0-9]+\.[0-9]+\Z")
"""Prompt, draw and number of a member of a step."""
FULL_RETRY_S = 5.0


@dataclass(slots=True)
class Kept:
    """A result that is here."""

    result: Result
    ended_s: float
    """When the job ended, by the clock of Redis."""
    delivered_s: float | None = None
    """When the last answer with it went out, by ours; None = never, as far as this process knows."""
    readers: int = 0
    """Answers that are being made of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that a client wants."""

    request: JobRequest
    digest: str
    """Equal for equal requests."""
    n_bytes: int

    @classmethod
    def of(cls, request: JobRequest, said: Mapping[str, object] | None = None) -> Wanted:
        """Looks at each value of the request: for large ones, to be called in a thread.

        Args:
            said: what its client said of it, where the request has more than that; without the id. Default: the request, as far as it says
                anything, without its span: so a later version of this project, whose requests have more fields, makes the same digest.
        """
        if said is None:
            said = request.model_dump(mode="json", exclude_defaults=True, exclude={"id", "traceparent"})
        raw = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
        return cls(request, hashlib.blake2b(raw, digest_size=DIGEST_BYTES).hexdigest(), len(raw))


@dataclass(slots=True)
class Open:
    """A job that was submitted here and has not ended."""

    digest: str
    n_bytes: int
    by_process: bool
    """It came by `/process`, so `/stop` ends it."""


@dataclass(slots=True)
class Work:
    """The single jobs of one run.

    Args:
        run: held by this process.
    """

    run: Run
    settings: GatewaySettings
    kept: dict[str, Kept] = field(default_factory=dict)
    """By full id, in the order of their arrival."""
    open: dict[str, Open] = field(default_factory=dict)
    submitted: int = 0
    let_go_count: int = 0
    _digests: dict[str, str] = field(default_factory=dict)
    """Of requests whose results are kept."""
    _open_bytes: int = 0
    _submitting: set[asyncio.Task[list[Job]]] = field(default_factory=set)

    # ---- ids

    def full_id(self, name: str) -> str:
        """Id of a job in the queue, from the one that a client uses: the part after the run, or the whole."""
        return name if name.startswith(self.run.id + ".") else f"{self.run.id}.{name}"

    def named(self, name: str) -> str:
        """Id in the queue of the job that a client calls so: what it sent as `job_id`, or what it was told of a member of a step."""
        own, sent = name.removeprefix(self.run.id + "."), self.full_id(queue_name(name))
        is_member = MEMBER.match(own) is not None and sent not in self.open and sent not in self.kept
        return f"{self.run.id}.{own}" if is_member or PROMPT_ID.match(own) else sent

    def client_id(self, job: str) -> str:
        """What a client calls a job."""
        return job.removeprefix(self.run.id + ".")

    # ---- submitting

    def submit(self, wanted: Sequence[Wanted], *, wait_s: float = 0.0, by_process: bool = False) -> asyncio.Task[list[Job]]:
        """Puts jobs into the queue, or finds those that are there under these ids.

        In a task: it is not broken off when its caller is, since nobody would know then whether the jobs are in.

        Args:
            wait_s: how long to wait while the queue is full.
            by_process: they came by `/process`.

        Raises:
            IdTaken: another request has one of these ids.
            Refusal: the gateway keeps as much as it may.
            InvalidRequest, QueueFull, RunClosed, StaleIncarnation
        """
        task = asyncio.create_task(self._submit(wanted, wait_s, by_process), name="submit")
        self._submitting.add(task)
        task.add_done_callback(self._submitted)
        return task

    def _submitted(self, task: asyncio.Task[list[Job]]) -> None:
        self._submitting.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever asked may be gone

    async def close(self) -> None:
        """Ends submissions that wait for room."""
        for task in self._submitting:
            task.cancel()
        await asyncio.gather(*self._submitting, return_exceptions=True)

    async def _submit(self, wanted: Sequence[Wanted], wait_s: float, by_process: bool) -> list[Job]:
        fresh: dict[str, Open] = {}
        for one in wanted:
            job, asked = self.full_id(one.request.id), Open(one.digest, one.n_bytes, by_process)
            known = (
                self._digests.get(job)
                or (self.open[job].digest if job in self.open else None)
                or (fresh[job].digest if job in fresh else None)
            )
            if known is not None and known != asked.digest:
                raise IdTaken(one.request.id)
            if known is None and job not in self.kept:
                fresh[job] = asked
        await self._make_room(len(fresh), sum(job.n_bytes for job in fresh.values()))
        for job, asked in fresh.items():
            self._open(job, asked)
        try:
            jobs = await self.run.submit([one.request for one in wanted], wait_s=wait_s, digests=[one.digest for one in wanted])
        except BaseException:
            # of many some may be in: their results come all the same, and the same request again finds them
            for job in fresh:
                self._close(job)
            raise
        self.submitted += len(fresh)
        gone = [job.id for job in jobs if job.was_acked]
        for job in gone:
            self._close(job)
        if gone:
            raise self._gone(gone[0])
        return jobs

    def _gone(self, job: str) -> Refusal:
        return Refusal(410, "gone", f"the result of {self.client_id(job)!r} was let go: a new job needs another id", field="id")

    async def _make_room(self, count: int, n_bytes: int) -> None:
        if not count:
            return
        if self._open_bytes + n_bytes > self.settings.max_open_bytes:
            why = f"open jobs hold {self._open_bytes:,} bytes of requests, the bound is {self.settings.max_open_bytes:,}"
            raise Refusal(503, "too_much_open", f"{why}: wait until some have ended", retry_after_s=FULL_RETRY_S)
        beyond = len(self.kept) + len(self.open) + count - self.settings.max_kept
        if beyond > 0:
            early = sorted((kept.delivered_s, job) for job, kept in self.kept.items() if kept.delivered_s is not None and not kept.readers)
            await self._let_go([job for _, job in early[:beyond]])
            if len(self.kept) + len(self.open) + count > self.settings.max_kept:
                why = f"{len(self.kept):,} results are kept and {len(self.open):,} jobs open, the bound is {self.settings.max_kept:,}"
                what = "fetch results, and DELETE what is not needed"
                raise Refusal(503, "too_many_kept", f"{why}: {what}", retry_after_s=FULL_RETRY_S)

    def _open(self, job: str, asked: Open) -> None:
        if job not in self.open:
            self.open[job] = asked
            self._open_bytes += asked.n_bytes

    def _close(self, job: str) -> Open | None:
        asked = self.open.pop(job, None)
        if asked is not None:
            self._open_bytes -= asked.n_bytes
        return asked

    @property
    def of_process(self) -> list[str]:
        """Open jobs that came by `/process`."""
        return [job for job, asked in self.open.items() if asked.by_process]

    # ---- results

    async def follow(self) -> None:
        """Notes each result of a single job, until the client of the run ends, and raises what ended it."""
        async for result in self.run.results():
            asked = self._close(result.job)
            if asked is not None:
                self._digests[result.job] = asked.digest
            self.kept[result.job] = Kept(result, _ended_s(result.record.entry))

    async def result(self, job: str, timeout_s: float | None) -> Result:
        """How a job ended; waits for that.

        Raises:
            WaitTimeout: says what stands in its way.
            Refusal: 410, it was let go.
        """
        try:
            return await self.run.job(job).result(timeout_s)
        except InvalidRequest as gone:
            if gone.field != "job":
                raise
            raise self._gone(job) from None

    @contextmanager
    def reading(self, result: Result) -> Iterator[None]:
        """While the block runs, the result is not let go; afterwards its bodies are not held in memory."""
        kept = self.kept.get(result.job)
        if kept is not None:
            kept.readers += 1
        try:
            yield
        finally:
            if kept is not None:
                kept.readers -= 1
            if kept is None or not kept.readers:
                result.forget()

    def delivered(self, job: str) -> None:
        """An answer with a result in it went out."""
        kept = self.kept.get(job)
        if kept is not None:
            kept.delivered_s = time.time()

    # ---- ends

    async def cancel(self, job: str) -> str:
        """Cancels a job: `settled` at once, `running` (its worker is told), `done` before, or `unknown`."""
        return await self.run.job(job).cancel(CancelReason.USER)

    async def let_go(self, job: str) -> bool:
        """Lets go of a result that is here; whether it was.

        Raises:
            Refusal: 409, somebody is being given it.
        """
        if job not in self.kept:
            return False
        if self.kept[job].readers:
            raise Refusal(409, "being_read", "an answer is being made of this result: try again", retry_after_s=1.0)
        await self._let_go([job])
        return True

    async def sweep(self) -> int:
        """Lets go of what was kept long enough; returns how many results went."""
        now_s = time.time()
        return await self._let_go([job for job, kept in self.kept.items() if not kept.readers and self._is_over(kept, now_s)])

    def _is_over(self, kept: Kept, now_s: float) -> bool:
        if kept.delivered_s is not None:
            return now_s - kept.delivered_s > self.settings.keep_delivered_s
        return now_s - kept.ended_s > self.settings.keep_unasked_s

    async def _let_go(self, jobs: Sequence[str]) -> int:
        gone = 0
        for at in range(0, len(jobs), MAX_BATCH):
            part = [self.kept[job].result for job in jobs[at : at + MAX_BATCH] if job in self.kept]
            await self.run.ack(part)
            for result in part:
                self.kept.pop(result.job, None)
                self._digests.pop(result.job, None)
            gone += len(part)
        self.let_go_count += gone
        return gone


def queue_name(name: str) -> str:
    """The id that a job has in the queue, from whatever text its client calls it: the text where that may stand in a key, else a digest
    of it."""
    return name if PROMPT_ID.match(name) else "h" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _ended_s(entry: str) -> float:
    """When an entry was written, from its id."""
    milliseconds = entry.partition("-")[0]
    return int(milliseconds) / 1000 if milliseconds.isdigit() else time.time()


__all__ = ["Kept", "Wanted", "Work", "queue_name"]
