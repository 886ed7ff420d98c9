"""An inference server as a `Backend`, over HTTP or a Unix socket.

How a call goes: check that it fits, send it, check what came, believe it. Which kind the server is and what it can do is asked once, by
trying, because wires moved between versions and flags switch parts of them off. It is asked again when a connection broke, when an answer
was not to be believed, when a route is gone, or when the server was started again: behind the address there may be another by now.

A restart between two calls breaks no connection; it shows as a new one. So once a connection was made, at most as often as an engine can
restart, the server is asked when it was started, before a call and after it: of an answer that came from another start nobody knows
whether its logprobs are raw, so it is not believed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from pipeline.engines.connect import connect_control
from pipeline.engines.errors import InvalidResponse, Overlong, Refused, Retryable
from pipeline.engines.exchange import ABSENT, Exchange
from workers.llm.backend import Caps, GenRequest, GenResult, Span, VersionSource
from workers.llm.calls import Calls
from workers.llm.images import PromptImage, ReadImage
from workers.llm.validate import check_ids, check_label
from workers.llm.wire import Answer, EngineFailed, Wire

FASTEST_RESTART_S = 15.0
"""No engine is up again sooner: a tiny model on an idle machine takes 20 s."""
LONGEST_DIALOGUE = 1_000_000
"""Tokens of one that a server renders."""
PROBE_TIMEOUT_S = 60.0
"""The first generation after a cold start has been seen to take 15 s."""


class HttpBackend:
    """One server. An async context manager; usable from the loop it was entered on. Made by `connect_backend`.

    Args:
        url: `http://host:port` or `unix:/path/to.sock`.
        api_key: sent as a bearer token when not empty.
        ask: finds out what is there.
        fastest_restart_s: how soon after it was asked the server can have been started again.
    """

    def __init__(
        self, url: str, api_key: str, ask: Callable[[Exchange], Awaitable[Wire]], *, fastest_restart_s: float = FASTEST_RESTART_S
    ) -> None:
        self.url = url.rstrip("/")
        self._http = Exchange(url, api_key)
        self._ask = ask
        self._wire: Wire | None = None
        self._breaks = 0
        """Of the connections, when the wire was found."""
        self._fastest_restart_s = fastest_restart_s
        self._started = ""
        """Names the start of the server that the wire was found at; empty = it does not say."""
        self._connections = 0
        """Made when the server's start was last looked at."""
        self._look_at_s = 0.0
        """From when on that may be looked at again, by the monotonic clock."""
        self._asking = asyncio.Lock()
        self._calls = Calls(self._http)
        self.control = connect_control(self._http)

    async def __aenter__(self) -> Self:
        self._http.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """End calls in flight, let aborts out, then give back connections."""
        await self._calls.close()
        await self._http.close()

    async def probe(self) -> Caps:
        """What the server can do. Asked once, then remembered; one token is sampled, since its form tells the form of all."""
        return (await self._found()).caps

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """One call, checked.

        Raises:
            Overlong: it does not fit; nothing was sent.
            Retryable: no answer, or none of a healthy server.
            Refused: the server finds the request wrong.
            InvalidResponse: the answer contradicts itself or the request.
        """
        if request.max_tokens < 1:
            raise ValueError(f"expected max_tokens of at least 1, got {request.max_tokens}")
        wire = await self._found()
        try:
            return await self._generate(wire, request, timeout_s)
        except Refused as error:
            if error.status not in ABSENT:
                raise
            self._forget(wire)
        return await self._generate(await self._found(), request, timeout_s)

    async def abort(self, request_id: str) -> None:
        """End a call by id. One of this process returns what it has; without an abort route its connection is closed instead.

        A server of which nothing is known yet is not asked what it can do: that samples a token, and an engine that stands samples none.
        """
        unknown = await self._calls.abort(self._wire, request_id)
        if unknown:
            await self.control.abort(unknown)

    async def render_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **template_kwargs: Any) -> list[int]:
        """Ids that the server's own chat template gives for a dialogue, generation prompt included (`/tokenize`).

        Args:
            messages: in the OpenAI form; plain JSON values.
            tools: function schemas in the OpenAI form.
            template_kwargs: switches of the template (`enable_thinking`).
        """
        caps = await self.probe()
        body = {
            "model": caps.model,
            "messages": messages,
            "add_generation_prompt": True,
            "add_special_tokens": False,
            "chat_template_kwargs": template_kwargs,
        }
        if tools:
            body["tools"] = tools
        match await self._http.post("/tokenize", body):
            case {"tokens": list(tokens)} if len(tokens) <= LONGEST_DIALOGUE:
                return check_ids(tokens, "tokens of a dialogue")
            case other:
                raise InvalidResponse("tokenize", f"expected tokens, got {other!r:.80}", server=self.url)

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the server makes of an image, for calls that show it.

        Raises:
            Unsupported: it takes none beside ids.
            InvalidResponse: what it says is of no image, or of one that no call can place.
        """
        try:
            return await (await self._found()).read_image(image)
        except InvalidResponse as error:
            raise InvalidResponse(error.check, error.detail, server=self.url) from error

    async def _generate(self, wire: Wire, request: GenRequest, timeout_s: float) -> GenResult:
        caps = wire.caps
        if len(request.prompt_ids) + 1 > caps.max_model_len:
            raise Overlong(len(request.prompt_ids), caps.max_model_len)
        stamped = caps.reports_version and not caps.has_spans
        before = await self.control.version() if stamped else request.believed_version
        started = time.monotonic()
        payload, name = await self._calls.send(wire, request, timeout_s=timeout_s)
        seconds = time.monotonic() - started
        answer = self._read(wire, payload, request, name)
        after = await self.control.version() if stamped else ""
        if await self._was_restarted(if_unknown=False):
            self._forget(wire)
            raise InvalidResponse("restarted", "the server was started again: its logprobs may be others", server=self.url)
        if self._wire is not None and self._wire.caps.logprobs_mode != caps.logprobs_mode:
            raise InvalidResponse("restarted", "the server was found in another mode of logprobs meanwhile", server=self.url)
        if answer.spans is None and answer.output_ids:
            check_label(before)
        spans, source = _spans_of(answer, before, stamped=stamped)
        return GenResult(
            output_ids=answer.output_ids,
            logprobs=answer.logprobs,
            finish=answer.finish,
            stop_reason=answer.stop_reason,
            spans=spans,
            version_source=source,
            version_after=after,
            cached_tokens=answer.cached_tokens,
            logprobs_mode=caps.logprobs_mode,
            server=self.url,
            server_request_id=answer.request_id,
            seconds=seconds,
            experts=answer.experts,
        )

    def _read(self, wire: Wire, payload: object, request: GenRequest, name: str) -> Answer:
        try:
            return wire.read(payload, request, name)
        except EngineFailed as error:
            raise Retryable("engine_failed", self.url, str(error)) from error
        except InvalidResponse as error:
            self._forget(wire)
            raise InvalidResponse(error.check, error.detail, server=self.url) from error

    async def _found(self) -> Wire:
        wire = self._wire
        if wire is not None and self._http.breaks == self._breaks:
            if not await self._was_restarted(if_unknown=True):
                return wire
            self._forget(wire)
        async with self._asking:
            if self._wire is None or self._http.breaks != self._breaks:
                breaks = self._http.breaks
                try:
                    async with asyncio.timeout(PROBE_TIMEOUT_S):
                        self._started = (await self.control.health()).started
                        self._wire, self._breaks = await self._asked(), breaks
                except TimeoutError:
                    raise Retryable("timeout", self.url, f"no answer to the probe within {PROBE_TIMEOUT_S:g} s") from None
                self._note_look()
            return self._wire

    async def _was_restarted(self, *, if_unknown: bool) -> bool:
        """Whether the server says that it was started after the wire was found; looked at when it can have been.

        Args:
            if_unknown: the answer for a server that does not say when it was started.
        """
        made = self._http.connections != self._connections and time.monotonic() >= self._look_at_s
        if self._wire is None or not (made or self._http.breaks != self._breaks):
            return False
        if not self._started:
            return if_unknown
        self._note_look()  # before the look: others need not do the same meanwhile
        health = await self.control.health()
        self._note_look()
        return health.alive and health.started != self._started

    def _note_look(self) -> None:
        self._connections, self._look_at_s = self._http.connections, time.monotonic() + self._fastest_restart_s

    async def _asked(self) -> Wire:
        try:
            return await self._ask(self._http)
        except Retryable as error:
            if error.reason != "closed":
                raise
        return await self._ask(self._http)

    def _forget(self, wire: Wire) -> None:
        if self._wire is wire:
            self._wire = None


def _spans_of(answer: Answer, before: str, *, stamped: bool) -> tuple[tuple[Span, ...], VersionSource]:
    if answer.spans is not None:
        return answer.spans, "spans"
    # Between the two looks the weights may have changed; the older label never makes a token look fresher than it is.
    n_tokens = len(answer.output_ids)
    spans = (Span(version=before, start=0, end=n_tokens),) if n_tokens else ()
    return spans, "stamped" if stamped else "assumed"
