"""One job's way to a model server: assigned by the pool in Redis, held for the life of the job, changed when it fails.

This is what the agent sees. Invariants:
  1. A call goes out only after the pool said that it may begin (`pool_begin_call`): the run is not paused, the lease lives, the server is
     well and holds weights that the run allows.
  2. An answer is believed only when every token of it bears a label that the run allowed when the call began, or when it ended, or one in
     between. Where the server does not say it of each token, they must have been the same all the time: an answer over which weights
     changed is not believed then, and costs no try. The record has the label without the run's name.
  3. Waiting for a server, for the end of a pause, or for the Redis that knows of them is progress and no active time, and passes the gate.

A server that cannot be reached costs no try: that is no server, and no server is waited for. Nor does one whose engine was paused between
the begin of a call and its arrival: the run is paused, and that is waited for. One that is busy sheds load, which ends nobody's attempt:
it is waited for, too, but not for ever.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import redis
import structlog

from pipeline.engines.errors import InvalidResponse, ModelError, Retryable, RetryReason, Unsupported
from pipeline.errors import BrokerError
from pipeline.inference_pool import AllowedLabels, Assignment, Begun, Call, EndedCall, Wanted, label_in_record
from workers.llm.backend import Caps, GenRequest, GenResult, Model
from workers.llm.images import PromptImage, ReadImage, ReadsImages
from workers.llm.server_check import ServerCheck
from workers.stages.run_watch import RunWatch, ServerSilent, Waiting

if TYPE_CHECKING:
    from workers.stages.model_servers import ModelServers

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 2.0
"""Between two tries of one call."""
CALL_TRIES = 4
"""Tries of one model call over all servers, before the attempt fails."""
BUSY_S = 300.0
"""For so long a call that meets nothing but busy servers is made again before that costs tries."""
WAIT_PROGRESS_S = 60.0
PROBE_PROGRESS_S = 180.0
GATE_EVERY_S = 0.5
"""Who waits passes the gate so often."""
BACKEND_TIMEOUT_S = 30 * 86_400.0
"""The time of a call is kept here, where it can stand still; the backend's own is out of the way."""
COSTS_NO_TRY: frozenset[str] = frozenset(("unreachable", "engine_paused", "weights_changed"))
SUSPICIOUS: frozenset[RetryReason] = frozenset(("unreachable", "closed", "engine_failed"))
"""What says that a server is not well; a busy or paused one is."""


class PooledBackend:
    """The part of `Backend` that the agent uses. An async context manager."""

    def __init__(
        self,
        servers: ModelServers,
        run: str,
        wanted: Wanted,
        *,
        gate: Callable[[], None],
        progress: Callable[[float], None],
        waiting: Waiting,
    ) -> None:
        self._servers = servers
        self._run = run
        self._wanted = wanted
        self._gate = gate
        self._progress = progress
        self._waiting = waiting
        self._joined: RunWatch | None = None
        self._assignment: Assignment | None = None
        self._in_flight: set[str] = set()
        self._check: ServerCheck | None = None
        self._seen: tuple[str, int] | None = None
        """Server of the last answer, and tokens of this job that it has seen."""
        self.calls_again = 0
        """Calls that were made again, here or elsewhere."""
        self.rerouted = 0
        """Answers that came from another server than the one before."""
        self.lost_tokens = 0
        """Tokens that a server before had seen and the new one had not."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._leave()

    async def leave(self) -> None:
        """Ends what is in flight and gives the server back, over the head of whoever uses it."""
        answers = await asyncio.gather(*(self.abort(request_id) for request_id in [*self._in_flight]), return_exceptions=True)
        for error in filter(None, answers):
            log.warning("call_not_aborted", job_id=self._wanted.job, error=str(error))
        await self._leave()

    async def _leave(self) -> None:
        if self._joined is not None:
            self._joined = None
            self._servers.leave(self._run)
        if self._assignment is not None:
            await self._servers.release(self._assignment)

    def check_servers(self, check: ServerCheck) -> None:
        """Shows each server to `check` before any call to it; what that raises is treated as if the call had."""
        self._check = check

    def told(self) -> Mapping[str, int]:
        """For the record: how often the job went to another server, and what that cost in tokens of its prefix. Empty when it never did."""
        return {"rerouted": self.rerouted, "lost_tokens": self.lost_tokens} if self.rerouted else {}

    # ---- calls

    async def probe(self) -> Caps:
        """What the assigned server can do."""

        async def call(backend: Model, _: Begun) -> Caps:
            self._progress(PROBE_PROGRESS_S)
            return await backend.probe()

        async def believe(caps: Caps, _: Begun, call: Call) -> Caps:
            self._servers.calls.end(EndedCall(call))
            return caps

        return await self._tried(f"probe-{self._wanted.holder}", call, believe)

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the assigned server makes of an image; any other of the model can be shown it."""

        async def call(backend: Model, _: Begun) -> ReadImage:
            self._progress(PROBE_PROGRESS_S)
            if not isinstance(backend, ReadsImages):
                raise Unsupported(self._server, "be shown images", "use vLLM with --enable-scale-out, or set chat.images to false")
            return await backend.read_image(image)

        async def believe(read: ReadImage, _: Begun, call: Call) -> ReadImage:
            self._servers.calls.end(EndedCall(call))
            return read

        return await self._tried(f"image-{self._wanted.holder}", call, believe)

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """One call; at another server, or the same one later, when a retry can help. `timeout_s` stands still while the run is paused.

        Prefix caches are shared only within a run and a version of its weights: the salt keeps others out.
        """

        async def call(backend: Model, begun: Begun) -> GenResult:
            salt = begun.version if begun.version.startswith(f"{self._run}/") else f"{self._run}:{begun.version}"
            sent = replace(request, cache_salt=salt, believed_version=begun.version or request.believed_version)
            promised_s = timeout_s + WAIT_PROGRESS_S
            self._progress(promised_s)
            try:
                async with self._watch.in_flight(self._server, timeout_s, self._waiting, lambda: self._progress(promised_s)):
                    return await backend.generate(sent, timeout_s=BACKEND_TIMEOUT_S)
            except TimeoutError:
                raise Retryable("timeout", self._server, f"no answer within {timeout_s:g} s") from None
            except ServerSilent as error:
                raise Retryable("unreachable", self._server, str(error)) from None

        async def believe(result: GenResult, begun: Begun, call: Call) -> GenResult:
            ended = self._count(request, result, call)
            strange = [span.version for span in result.spans if not begun.allowed.allows(span.version, self._run)]
            told = self._servers.calls.end(ended)
            if strange or result.version_source != "spans":
                while not told.done():  # Redis is away, perhaps: without its word there is nothing to believe
                    self._gate()
                    self._progress(WAIT_PROGRESS_S)
                    with self._waiting():
                        await asyncio.wait([told], timeout=GATE_EVERY_S)
                if _changed(result, begun, told.result()):
                    raise Retryable("weights_changed", self._server, "the server does not say which tokens are of which weights")
                allowed = begun.allowed.until(told.result())
                for version in strange:
                    if not allowed.allows(version, self._run):
                        await self._servers.report_label(self._run, call.assignment.server, version, begun.allowed)
                        raise InvalidResponse(
                            "version",
                            f"tokens bear {version!r}; the run allowed {begun.allowed.highest!r} when the call began and "
                            f"{allowed.highest!r} when it ended",
                            server=call.assignment.server,
                        )
            return replace(result, spans=tuple(replace(span, version=label_in_record(span.version, self._run)) for span in result.spans))

        self._in_flight.add(request.request_id)
        measures, began_s = self._servers.measures, time.monotonic()
        try:
            answer = await self._tried(request.request_id, call, believe)
        except ModelError:
            measures.model_calls["failed"].add()
            raise
        else:
            measures.model_calls["ok"].add()
            measures.model_call_seconds.observe(time.monotonic() - began_s)
            return answer
        finally:
            self._in_flight.discard(request.request_id)

    async def abort(self, request_id: str) -> None:
        """Ends a call at the server it went to."""
        if self._assignment is not None:
            await (await self._servers.backend(self._assignment.server, self._wanted.model)).abort(request_id)

    @property
    def _watch(self) -> RunWatch:
        """The watcher of the run, from the first call to the end of the job."""
        if self._joined is None:
            self._joined = self._servers.join(self._run)
        return self._joined

    @property
    def _server(self) -> str:
        return self._assignment.server if self._assignment is not None else ""

    async def _tried(
        self,
        name: str,
        call: Callable[[Model, Begun], Awaitable[Answer]],
        believe: Callable[[Answer, Begun, Call], Awaitable[Answer]],
    ) -> Answer:
        """One call, made again at another server, or the same one later, when that can help.

        Args:
            name: by which the pool knows the call.
            believe: takes the answer, and says that the call has ended.
        """
        left, busy, busy_since_s = CALL_TRIES, 0, math.inf
        while True:
            assignment, begun = await self._begun(name)
            mine, is_ended = Call(assignment, name), False
            try:
                backend = await self._servers.backend(assignment.server, self._wanted.model)
                self._gate()
                if self._check is not None:
                    await self._check(assignment.server, backend)
                answer = await call(backend, begun)
                is_ended = True
                answer = await believe(answer, begun, mine)
            except ModelError as error:
                reason = error.reason if isinstance(error, Retryable) else ""
                now_s = asyncio.get_running_loop().time()
                busy_since_s = min(busy_since_s, now_s) if reason == "busy" else math.inf
                left -= reason not in COSTS_NO_TRY and (reason != "busy" or now_s - busy_since_s > BUSY_S)
                if reason in SUSPICIOUS or isinstance(error, InvalidResponse):
                    self._servers.suspicions.suspect(assignment.server)
                if reason == "unreachable":
                    await self._servers.report_refused(self._run, assignment.server, str(error))
                if not error.retryable or left == 0:
                    raise
                log.warning("model_call_again", job_id=self._wanted.job, server=assignment.server, error=str(error), tries_left=left)
                if not is_ended:
                    is_ended = True
                    self._servers.calls.end(EndedCall(mine))
                await self._give_back()
                self.calls_again += 1
                busy += reason == "busy"
                asked_s = error.retry_after_s if isinstance(error, Retryable) else None
                wait_s = min(LONGEST_WAIT_S, asked_s or FIRST_WAIT_S * 2 ** (CALL_TRIES - left + min(busy, 8)))
                with self._waiting():
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            else:
                self._servers.suspicions.trust(assignment.server)
                return answer
            finally:
                if not is_ended:
                    self._servers.calls.end(EndedCall(mine))

    def _count(self, request: GenRequest, result: GenResult, call: Call) -> EndedCall:
        """What a call that was answered tells of the way that the job took."""
        server = call.assignment.server
        before, self._seen = self._seen, (server, len(request.prompt_ids) + len(result.output_ids))
        if before is None or before[0] == server:
            return EndedCall(call)
        lost = max(0, min(before[1], len(request.prompt_ids)) - (result.cached_tokens or 0))
        self.rerouted += 1
        self.lost_tokens += lost
        return EndedCall(call, rerouted=True, lost_tokens=lost)

    # ---- beginning

    async def _begun(self, name: str) -> tuple[Assignment, Begun]:
        """A call that may go out; waits until there is one."""
        while True:
            self._gate()
            self._progress(WAIT_PROGRESS_S)
            change = self._watch.next_change
            if self._assignment is not None and not self._servers.holds(self._assignment):
                self._assignment = None
            try:
                if self._assignment is None:
                    found = await self._servers.assign(self._run, self._wanted)
                    if not isinstance(found, Assignment):
                        await self._wait(change, self._servers.suspicions.next_end_s)
                        continue
                    self._assignment = found
                answer = await self._servers.calls.begin(Call(self._assignment, name))
            except (BrokerError, redis.RedisError) as error:
                log.warning("call_waits_for_redis", job_id=self._wanted.job, error=str(error))
                await self._wait(change, LONGEST_WAIT_S)
                continue
            if isinstance(answer, Begun):
                return self._assignment, answer
            if answer == "paused":
                await self._wait(change, None)
            elif answer != "crowded" or self._wanted.pin is None:
                await self._give_back()

    async def _give_back(self) -> None:
        assignment, self._assignment = self._assignment, None
        if assignment is not None:
            await self._servers.release(assignment)

    async def _wait(self, change: asyncio.Event, at_most_s: float | None) -> None:
        """Until something changes, or `at_most_s` seconds, passing the gate; no active time."""
        loop = asyncio.get_running_loop()
        until_s = None if at_most_s is None else loop.time() + at_most_s
        with self._waiting():
            while not change.is_set() and (until_s is None or loop.time() < until_s):
                await self._watch.wait(change, GATE_EVERY_S if until_s is None else min(GATE_EVERY_S, max(0.01, until_s - loop.time())))
                self._gate()
                self._progress(WAIT_PROGRESS_S)


def _changed(result: GenResult, begun: Begun, allowed: AllowedLabels) -> bool:
    """Whether weights changed during a call whose tokens bear one label for all of it. Labels never come back, so two looks tell."""
    match result.version_source:
        case "stamped":
            return any(span.version != result.version_after for span in result.spans)
        case "assumed":
            return not begun.allowed.any and allowed != begun.allowed
        case _:
            return False
