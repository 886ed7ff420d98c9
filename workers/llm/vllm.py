"""A vLLM server as a `Backend`, over HTTP or a Unix socket.

How a call goes: check that it fits, send it, check what came, believe it. What the server can do is asked once, by trying
(`probe`), because the wire moved between versions and flags switch parts of it off.

Traps this file knows:
  * A connection that closes before any answer is tried once more, under another id, since the first request may have been read.
  * Abort goes by the server's own id (ours with a prefix). An empty list of ids would abort every request of the server.
  * Calls that are aborted in one turn of the loop are aborted by one request.
  * An unfinished call is ended in two ways, by id and by closing its connection: a proxy between us may hide the second.
  * Messages of errors are for people; decisions go by status and our own checks.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

from pipeline.engines.errors import InvalidResponse, ModelError, Overlong, Refused, Retryable
from pipeline.engines.exchange import ABSENT, Exchange
from pipeline.engines.vllm import VllmControl
from pipeline.messages import Sampling
from workers.llm import vllm_wire as wire
from workers.llm.backend import Caps, GenRequest, GenResult, Span, VersionSource
from workers.llm.gathered import Gathered

PROBE_TIMEOUT_S = 60.0
"""The first generation after a cold start has been seen to take 15 s."""
END_CALL_TIMEOUT_S = 0.5
"""Abort by id on the way out; the connection closes after it in any case."""
SECOND_TRY = "-again"
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
ABORT_PATHS = ("/inference/v1/abort_requests", "/abort_requests")


class VllmBackend:
    """One vLLM server. An async context manager; usable from the loop it was entered on.

    Args:
        url: `http://host:port` or `unix:/path/to.sock`.
        model: name to ask for; empty = the first the server lists.
        api_key: sent as a bearer token when not empty.
        endpoint: `auto` takes `/inference/v1/generate` where the server has it.
    """

    def __init__(
        self, url: str, *, model: str = "", api_key: str = "", endpoint: Literal["auto", "generate", "completions"] = "auto"
    ) -> None:
        self.url = url.rstrip("/")
        self._model = model
        self._endpoint = endpoint
        self._http = Exchange(url, api_key)
        self._caps: Caps | None = None
        self._breaks = 0
        self._probing = asyncio.Lock()
        self._in_flight: dict[str, asyncio.Task[object]] = {}
        self.control = VllmControl(self._http)
        self._abort_ids: Gathered[str] = Gathered(self._post_abort, "abort model calls")

    async def __aenter__(self) -> Self:
        self._http.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """End calls in flight and give back connections."""
        calls = list(self._in_flight.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._http.close()
        await self._abort_ids.close()

    # ---- generation

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
        caps = await self.probe()
        if len(request.prompt_ids) + 1 > caps.max_model_len:
            raise Overlong(len(request.prompt_ids), caps.max_model_len)
        stamped = caps.reports_version and not caps.has_spans
        before = await self.control.version() if stamped else request.believed_version
        started = time.monotonic()
        answer = await self._answer(request, caps, timeout_s)
        seconds = time.monotonic() - started
        after = await self.control.version() if stamped else ""
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
            server=self.url,
            server_request_id=answer.request_id,
            seconds=seconds,
        )

    async def _answer(self, request: GenRequest, caps: Caps, timeout_s: float) -> wire.Answer:
        call = asyncio.create_task(self._post_generation(request, caps), name=f"generate {request.request_id}")
        self._in_flight[request.request_id] = call
        try:
            async with asyncio.timeout(timeout_s):
                payload = await asyncio.shield(call)
        except TimeoutError:
            await self._end_call(request.request_id, call)
            raise Retryable("timeout", self.url, f"no answer within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is None or not me.cancelling():
                raise Retryable("aborted", self.url, "the call was ended by closing its connection") from None
            await self._end_call(request.request_id, call)
            raise
        finally:
            self._in_flight.pop(request.request_id, None)
        try:
            return wire.parse_generate(payload, request) if caps.endpoint == "generate" else wire.parse_completions(payload, request)
        except InvalidResponse as error:
            raise _told(error, payload, self.url) from error

    async def _post_generation(self, request: GenRequest, caps: Caps) -> object:
        path = GENERATE if caps.endpoint == "generate" else COMPLETIONS
        build = wire.generate_body if caps.endpoint == "generate" else wire.completions_body
        headers = {"X-Session-ID": request.session_id} if request.session_id else {}
        try:
            return await self._http.post(path, build(request, request.request_id, caps.model), headers=headers, timeout_s=None)
        except Retryable as error:
            if error.reason != "closed":
                raise
            again = build(request, request.request_id + SECOND_TRY, caps.model)
            return await self._http.post(path, again, headers=headers, timeout_s=None)

    async def _end_call(self, request_id: str, call: asyncio.Task[object]) -> None:
        try:
            async with asyncio.timeout(END_CALL_TIMEOUT_S):
                await self.abort(request_id)
        except (TimeoutError, ModelError):
            pass  # closing the connection, below, aborts as well
        finally:
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def abort(self, request_id: str) -> None:
        """End a call by id. One of this process returns what it has; without an abort route its connection is closed instead."""
        caps = self._caps or await self.probe()
        if caps.abort_path:
            await self._abort_ids(*(name for own in (request_id, request_id + SECOND_TRY) for name in wire.abort_ids(caps.endpoint, own)))
        elif (call := self._in_flight.get(request_id)) is not None:
            call.cancel()

    async def _post_abort(self, ids: Sequence[str]) -> None:
        if self._caps is not None:
            await self._http.post(self._caps.abort_path, {"request_ids": [*ids]}, parse=False)

    # ---- the chat template

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
            case {"tokens": list(tokens)} if all(type(token) is int for token in tokens):
                return tokens
            case other:
                raise InvalidResponse("tokenize", f"expected tokens, got {other!r:.80}", server=self.url)

    # ---- what the server can do

    async def probe(self) -> Caps:
        """Ask once, then remember until a connection breaks. One token is sampled: its form tells the form of all."""
        if self._caps is not None and self._http.breaks == self._breaks:
            return self._caps
        async with self._probing:
            if self._caps is None or self._http.breaks != self._breaks:
                breaks = self._http.breaks
                try:
                    async with asyncio.timeout(PROBE_TIMEOUT_S):
                        self._caps, self._breaks = await self._ask(), breaks
                except TimeoutError:
                    raise Retryable("timeout", self.url, f"no answer to the probe within {PROBE_TIMEOUT_S:g} s") from None
            return self._caps

    async def _ask(self) -> Caps:
        match await self._http.get_if_there("/version"):
            case {"version": str(server_version)}:
                pass
            case _:
                server_version = ""
        model, max_model_len = self._choose_model(await self._http.get("/v1/models"))
        endpoint, answer = await self._first_token(model)
        abort_path = ""
        for path in ABORT_PATHS:
            if await self._http.takes(path, {"request_ids": wire.abort_ids(endpoint, "probe-of-the-abort-route")}):
                abort_path = path
                break
        return Caps(
            server_version=server_version,
            model=model,
            max_model_len=max_model_len,
            endpoint=endpoint,
            logprobs_shape=answer.shape,
            # Only one token was allowed: its processed logprob is 0, its raw one is what the model thinks of it.
            logprobs_mode="processed" if answer.logprobs[0] > -1e-6 else "raw",
            has_spans=answer.spans is not None,
            abort_path=abort_path,
            reports_version=await self._http.get_if_there("/weight_info") is not None,
            can_pause=await self._http.get_if_there("/is_paused") is not None,
            rejects_while_paused=_version_tuple(server_version) >= (0, 33),
        )

    async def _first_token(self, model: str) -> tuple[Literal["generate", "completions"], wire.Answer]:
        request = GenRequest(request_id=f"probe-{id(self):x}", prompt_ids=[0], sampling=Sampling(), max_tokens=1, seed=0)
        if self._endpoint != "completions":
            body = wire.generate_body(request, request.request_id, model)
            body["sampling_params"]["allowed_token_ids"] = [1]
            try:
                return "generate", wire.parse_generate(await self._http.post(GENERATE, body, timeout_s=None), request)
            except Refused as error:
                if error.status not in ABSENT or self._endpoint == "generate":
                    raise
        body = {**wire.completions_body(request, request.request_id, model), "allowed_token_ids": [1]}
        return "completions", wire.parse_completions(await self._http.post(COMPLETIONS, body, timeout_s=None), request)

    def _choose_model(self, payload: object) -> tuple[str, int]:
        match payload:
            case {"data": [*entries]}:
                for entry in entries:
                    match entry:
                        case {"id": str(name), "max_model_len": int(length)} if name == (self._model or name):
                            return name, length
        wanted = self._model or "any"
        raise InvalidResponse("models", f"expected a model ({wanted}) with its max_model_len, got {payload!r:.200}", server=self.url)


def _spans_of(answer: wire.Answer, before: str, *, stamped: bool) -> tuple[tuple[Span, ...], VersionSource]:
    if answer.spans is not None:
        return answer.spans, "spans"
    # Between the two looks the weights may have changed; the older label never makes a token look fresher than it is.
    n_tokens = len(answer.output_ids)
    spans = (Span(version=before, start=0, end=n_tokens),) if n_tokens else ()
    return spans, "stamped" if stamped else "assumed"


def _told(error: InvalidResponse, payload: object, server: str) -> ModelError:
    """The engine's own word for a fault of its is no contradiction: another try may be fine."""
    match payload:
        case {"choices": [{"finish_reason": "error"}]}:
            return Retryable("engine_failed", server, "the engine ended the call with an error")
        case _:
            return InvalidResponse(error.check, error.detail, server=server)


def _version_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
