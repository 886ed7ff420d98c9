"""Single jobs: submitting them, waiting for them, cancelling them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.causes import Reason
from pipeline.codec import encode
from pipeline.errors import InvalidRequest, QueueFull
from pipeline.keys import Keys
from pipeline.messages import CancelReason, JobTemplate
from pipeline.prompts import encode_prompt
from pipeline.redis_client import AsyncClient, ask
from pipeline.requests import JobRequest, template_id
from pipeline.scripts.calls import MAX_BATCH, Accepted, Scripts, Unit
from pipeline.settings import QueueSettings
from trainer_client.calls import Calls
from trainer_client.cancels import Cancels
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.logs import Log
from trainer_client.on_loop import OnLoop
from trainer_client.results import Result
from trainer_client.trace_parent import current_traceparent

log = Log(__name__)

MAX_CALL_BYTES = 8 * 1024 * 1024
"""Most bytes of prompts in one call (a longer one goes alone)."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it is sent, kept until it has ended."""

    unit: Unit
    template: JobTemplate
    template_id: str
    template_body: bytes


class Job(OnLoop):
    """A job that was submitted."""

    def __init__(self, job_id: str, jobs: Jobs) -> None:
        self.id = job_id
        self._jobs = jobs

    async def result(self, timeout_s: float | None = None) -> Result:
        """How it ended; waits for that.

        Raises:
            WaitTimeout: says where the job is and what stands in its way. It goes on; wait again or cancel it.
            InvalidRequest: its result was acked before.
        """
        return await self._jobs.result(self.id, timeout_s)

    @property
    def was_acked(self) -> bool:
        """Whether its result was acked, by this client or an earlier one: none comes any more."""
        return self._jobs.was_acked(self.id)

    async def cancel(self, reason: CancelReason = CancelReason.USER) -> str:
        """Cancels it: `settled` at once, `running` (its worker is told), `done` before, or `unknown`. A result comes in any case."""
        return await self._jobs.cancel(self.id, reason)

    async def status(self) -> dict[str, str]:
        """The job's readable fields in Redis (`st`, `stage`, `att`, ...); empty when it is acked or unknown."""
        return await self._jobs.status(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id}>"


class Jobs:
    """The single jobs of one client.

    Args:
        why_waiting: asked about a job whose result does not come.
    """

    def __init__(
        self,
        *,
        run: str,
        incarnation: int,
        settings: QueueSettings,
        client: AsyncClient,
        keys: Keys,
        scripts: Scripts,
        inbox: Inbox,
        calls: Calls,
        cancels: Cancels,
        life: Lifetime,
        why_waiting: Callable[[str], Awaitable[Sequence[Reason]]],
    ) -> None:
        self.unsettled: dict[str, Submission] = {}
        """Submitted by this client and not ended, as far as we know."""
        self._ended: dict[str, Submission] = {}
        """Ended and not acked: Redis may lose that."""
        self._run = run
        self._incarnation = incarnation
        self._settings = settings
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._inbox = inbox
        self._calls = calls
        self._cancels = cancels
        self._life = life
        self._why_waiting = why_waiting

    async def submit(self, requests: Sequence[JobRequest], *, wait_s: float, digests: Sequence[str]) -> list[Job]:
        """Puts jobs into the queue of the run; see `Run.submit`."""
        self._life.check(needs_open_run=True)
        if digests and len(digests) != len(requests):
            raise InvalidRequest(f"expected one digest a request, {len(requests)} in all, got {len(digests)}", field="digests")
        submissions = [
            self._submission(request, f"requests[{i}].prompt" if len(requests) > 1 else "prompt", digests[i] if digests else "")
            for i, request in enumerate(requests)
        ]
        give_up_at_s = time.monotonic() + wait_s
        for batch in _batches(submissions):
            await self._accept_in_time(batch, give_up_at_s)
        return [Job(submission.unit.id, self) for submission in submissions]

    def _submission(self, request: JobRequest, field: str, digest: str) -> Submission:
        if not isinstance(request, JobRequest):
            raise InvalidRequest(f"expected a JobRequest, got {type(request).__name__}", field=field.removesuffix(".prompt"))
        template = request.template()
        body = encode(template)
        prompt = encode_prompt(
            request.id,
            request.prompt,
            max_body_bytes=self._settings.max_body_bytes,
            field=field,
            traceparent=request.traceparent or current_traceparent(),
        )
        unit = Unit(f"{self._run}.{request.id}", 0, request.id, 0, request.version, prompt, digest)
        return Submission(unit, template, template_id(body), body)

    async def _accept_in_time(self, batch: Sequence[Submission], give_up_at_s: float) -> None:
        while True:
            try:
                await self._accept(batch)
                return
            except QueueFull as error:
                if time.monotonic() + error.retry_after_s > give_up_at_s:
                    raise
                await self._life.pause(error.retry_after_s)
                self._life.check(needs_open_run=True)

    async def _accept(self, batch: Sequence[Submission]) -> int:
        """Sends jobs of one template; returns how many were new."""
        first = batch[0]
        accepted = await self._calls.make_if_open(
            self._scripts.accept,
            self._run,
            self._incarnation,
            first.template,
            first.template_id,
            first.template_body,
            [submission.unit for submission in batch],
            max_waiting=self._settings.max_waiting,
            window=self._settings.admit_window,
        )
        acked = []
        for submission, state in zip(batch, accepted, strict=True):
            job = submission.unit.id
            if state is Accepted.ACKED and not self._inbox.was_acked(job):
                # by an earlier process of this trainer: no result will come
                self._inbox.drop("job", job)
                acked.append(job)
            if job not in self._inbox.jobs and not self._inbox.was_acked(job):
                self.unsettled[job] = submission
            elif state is Accepted.ACKED:
                self.unsettled.pop(job, None)
        if acked:
            log.warning("jobs_were_acked_before", run=self._run, jobs=len(acked), first=acked[0], meaning="their results are gone")
        return sum(state is Accepted.NEW for state in accepted)

    async def resubmit(self) -> int:
        """Sends again what has no result yet; returns how many Redis did not have."""
        return sum([await self._accept(batch) for batch in _batches(list(self.unsettled.values()))])

    def on_result(self, job: str) -> None:
        """A job ended."""
        submission = self.unsettled.pop(job, None)
        if submission is not None:
            self._ended[job] = submission

    def on_acked(self, job: str) -> None:
        """Its result was let go of."""
        self._ended.pop(job, None)

    def runs_again(self, job: str) -> bool:
        """Redis lost its end: it is submitted again, when this client has submitted it. Returns whether it has."""
        submission = self._ended.pop(job, None)
        if submission is not None:
            self.unsettled[job] = submission
        return job in self.unsettled

    def was_acked(self, job: str) -> bool:
        return self._inbox.was_acked(job)

    async def result(self, job: str, timeout_s: float | None) -> Result:
        if self._inbox.was_acked(job):
            raise InvalidRequest(f"the result of {job} was acked: it is gone", field="job")
        future = self._inbox.job_future(job)
        result = await self._life.wait(future, f"result of job {job}", timeout_s, lambda: self._why_waiting(job))
        result.was_given = True
        return result

    async def cancel(self, job: str, reason: CancelReason) -> str:
        counts = await self._cancels.ask("job", job, reason)
        return next((word for word, count in counts.items() if count), "unknown")

    async def status(self, job: str) -> dict[str, str]:
        from pipeline.supervisor.run_account import texts

        return texts(await self._calls.make(ask, self._client, "HGETALL", self._keys.job(job)))


def _batches(submissions: Iterable[Submission]) -> Iterator[list[Submission]]:
    """Jobs of one template each, within the bounds of one call, in order."""
    batch: list[Submission] = []
    n_bytes = 0
    for submission in submissions:
        size = len(submission.unit.body)
        other = bool(batch) and submission.template_id != batch[0].template_id
        if batch and (other or len(batch) == MAX_BATCH or n_bytes + size > MAX_CALL_BYTES):
            yield batch
            batch, n_bytes = [], 0
        batch.append(submission)
        n_bytes += size
    if batch:
        yield batch
