"""The scripted server's HTTP: vLLM's routes over our engine, in process or as a process of its own.

A client that closes its connection ends its call, as in vLLM: the handler of a request is cancelled with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

import orjson
from aiohttp import web

from workers.llm.scripted import bodies
from workers.llm.scripted.bodies import BadRequestError, Body
from workers.llm.scripted.chat_template import render_chat
from workers.llm.scripted.engine import Call, Engine, EngineBusyError, EnginePausedError, Output, PauseMode
from workers.llm.scripted.faults import Fault, Faults, corrupt, dictate_logprobs
from workers.llm.scripted.options import ServerOptions
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.problems import Problem, ProblemBank
from workers.llm.tokenizer import Tokenizer, load

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
PAUSE_MODES: dict[str, PauseMode] = {mode: mode for mode in get_args(PauseMode)}
MAX_BODY_BYTES = 64 * 2**20
BACKLOG = 2048
"""As vLLM's. With fewer a Unix socket refuses the workers of a node that all connect at once."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedServer:
    """An inference server that speaks vLLM's wire. `async with` starts and stops it.

    Args:
        options: what it imitates.
        problems: where its policy knows answers from.
        tokenizer: our own small one unless given.
        host: address to bind; loopback unless somebody asks for more.
        port: 0 = any free one.
        socket_path: a Unix socket instead of a port.
    """

    def __init__(
        self,
        options: ServerOptions | None = None,
        problems: Sequence[Problem] = (),
        *,
        tokenizer: Tokenizer | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        socket_path: Path | None = None,
    ) -> None:
        self.options = options or ServerOptions()
        self.tokenizer = tokenizer or load()
        self.policy = Policy(self.tokenizer, ProblemBank(problems), self.options.policy)
        self.engine = self._new_engine()
        self.faults = Faults()
        self.requests: deque[tuple[str, Body]] = deque(maxlen=256)
        """The last generation requests, path and body; for whoever wants to see what was sent."""
        self.url = ""
        self._numbers = itertools.count()
        self._started_s = time.time()
        """Names this start of the server."""
        self._where = (host, port, socket_path)
        self._runner: web.AppRunner | None = None

    def _new_engine(self) -> Engine:
        engine = Engine(self.options, self.tokenizer, self.policy)
        engine.loaded = self.options.weights or None
        return engine

    def restart(self, *, spared: asyncio.BaseTransport | None = None) -> None:
        """As if the process had died and come again at once: connections break, and everything that it was told is forgotten.

        Args:
            spared: a connection that finds the new process at its other end.
        """
        for transport in self.connections:
            if transport is not spared:
                transport.abort()
        self.engine = self._new_engine()
        self._started_s = max(time.time(), self._started_s + 0.001)

    @property
    def connections(self) -> list[asyncio.Transport]:
        """Open connections of clients."""
        server = self._runner.server if self._runner is not None else None
        found = [connection.transport for connection in server.connections] if server is not None else []
        return [transport for transport in found if transport is not None]

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, keepalive_timeout=self.options.keepalive_s, access_log=None, shutdown_timeout=1.0
        )
        await self._runner.setup()
        host, port, socket_path = self._where
        if socket_path is not None:
            await web.UnixSite(self._runner, str(socket_path), backlog=BACKLOG).start()
            self.url = f"unix:{socket_path}"
        else:
            await web.TCPSite(self._runner, host, port, backlog=BACKLOG).start()
            self.url = f"http://{host}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.die()

    async def die(self) -> None:
        """Stop at once: connections close without an answer."""
        if self._runner is None:
            return
        for site in list(self._runner.sites):
            await site.stop()
        for transport in self.connections:
            transport.abort()
        runner, self._runner = self._runner, None
        await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        add = app.router.add_route
        add("GET", "/health", self._health)
        add("GET", "/version", self._version)
        add("GET", "/v1/models", self._models)
        add("GET", "/metrics", self._metrics)
        add("POST", "/tokenize", self._tokenize)
        add("POST", "/detokenize", self._detokenize)
        add("POST", COMPLETIONS, self._generation)
        add("POST", "/scripted/faults", self._arm_fault)
        if self.options.scale_out:
            add("POST", GENERATE, self._generation)
        else:
            add("POST", "/inference/v1/{rest:.*}", self._switched_off)
        if self.options.scale_out and self.options.wire != "0.31":
            add("POST", "/inference/v1/abort_requests", self._abort)
        if self.options.dev_mode:
            add("POST", "/abort_requests", self._abort_or_all)
            add("POST", "/pause", self._pause)
            add("POST", "/resume", self._resume)
            add("GET", "/is_paused", self._is_paused)
            add("POST", "/update_weight_version", self._update_weight_version)
            add("GET", "/weight_info", self._weight_info)
            add("POST", "/reset_prefix_cache", self._reset_prefix_cache)
            add("POST", "/collective_rpc", self._collective_rpc)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        key = self.options.api_key
        if key and request.path.startswith(("/v1", "/inference")) and request.headers.get("authorization") != f"Bearer {key}":
            return _json(bodies.error_body("Unauthorized", "AuthenticationError", 401), 401)
        if request.path not in (GENERATE, COMPLETIONS):
            fault = self.faults.take(request.path)
            if fault is not None and fault.kind == "restart":
                self.restart(spared=request.transport)
            elif fault is not None:
                return await self._fail(request, fault)
        try:
            return await handler(request)
        except BadRequestError as error:
            return _json(bodies.error_body(error.message, error.kind, error.status, error.param), error.status)
        except EngineBusyError:
            return _json(bodies.error_body("The engine is currently busy", "ServiceUnavailableError", 503), 503)
        except EnginePausedError:
            return _json(bodies.error_body("The engine is paused", "engine_paused", 503), 503)

    # ---- generation

    async def _generation(self, request: web.Request) -> web.StreamResponse:
        body = await _object(request)
        self.requests.append((request.path, body))
        fault = self.faults.take(request.path)
        if fault is not None and fault.kind in ("status", "disconnect", "hang"):
            return await self._fail(request, fault)
        if fault is not None and fault.kind == "restart":
            self.restart(spared=request.transport)
            fault = None
        own_id = request.headers.get("x-request-id") or body.get("request_id") or f"anonymous-{next(self._numbers)}"
        read = bodies.read_generate if request.path == GENERATE else bodies.read_completions
        call = read(body, str(own_id), self.options, self.tokenizer)
        answer = self._write(request.path, body, call, await self.engine.run(call))
        dictate_logprobs(answer, body)
        if fault is not None and fault.kind == "break_off":
            return await self._break_off(request, orjson.dumps(answer))
        if fault is not None:
            bent = corrupt(answer, fault.corruption)
            return web.Response(body=bent, content_type="application/json") if isinstance(bent, bytes) else _json(bent)
        return _json(answer)

    def _write(self, path: str, body: Body, call: Call, output: Output) -> Body:
        wire = self.options.wire
        if path == GENERATE:
            return bodies.write_generate(body, call, output, wire)
        return bodies.write_completions(body, call, output, wire, self.tokenizer, self.options.model)

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.kind == "hang":
            await asyncio.Event().wait()  # until the client goes
        if fault.kind == "disconnect" and request.transport is not None:
            request.transport.close()
            await asyncio.Event().wait()
        headers = {} if fault.retry_after_s is None else {"retry-after": str(fault.retry_after_s)}
        return _json(bodies.error_body(fault.message, "made_to_fail", fault.status), fault.status, headers)

    async def _break_off(self, request: web.Request, answer: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": str(len(answer))})
        await response.prepare(request)
        await response.write(answer[: len(answer) // 2])
        if request.transport is not None:
            request.transport.abort()
        await asyncio.Event().wait()
        return response

    async def _switched_off(self, _: web.Request) -> web.StreamResponse:
        message = "This endpoint needs --enable-scale-out"
        return _json(bodies.error_body(message, "PermissionDeniedError", 403), 403)

    async def _abort(self, request: web.Request) -> web.StreamResponse:
        self.engine.abort(_texts(await _object(request), "request_ids"))
        return web.Response()

    async def _abort_or_all(self, request: web.Request) -> web.StreamResponse:
        body = await _object(request) if request.can_read_body else {}
        asked = _texts(body, "request_ids") or self.engine.request_ids()
        self.engine.abort(asked)
        return _json({"status": "aborted", "aborted": len(asked)})

    # ---- control

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        mode = PAUSE_MODES.get(request.query.get("mode", "abort"))
        clear_cache = request.query.get("clear_cache", "true") != "false"
        if mode is None:
            raise BadRequestError(f"mode must be one of {', '.join(PAUSE_MODES)}", param="mode")
        await self.engine.pause(mode, clear_cache=clear_cache)
        return _json({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.StreamResponse:
        self.engine.resume()
        return _json({"status": "resumed"})

    async def _is_paused(self, _: web.Request) -> web.StreamResponse:
        return _json({"is_paused": self.engine.paused is not None})

    async def _update_weight_version(self, request: web.Request) -> web.StreamResponse:
        version = (await _object(request)).get("new_version")
        if not isinstance(version, str):
            raise BadRequestError("new_version must be a text", param="body.new_version")
        self.engine.set_version(version)
        return _json({"success": True, "new_version": version})

    async def _weight_info(self, _: web.Request) -> web.StreamResponse:
        return _json({"weight_version": self.engine.version})

    async def _collective_rpc(self, request: web.Request) -> web.StreamResponse:
        """Loads weights, as vLLM's workers do; they have no label until they get one."""
        body = await _object(request)
        kwargs = body.get("kwargs") or {}
        path = kwargs.get("weights_path") if isinstance(kwargs, dict) else None
        if body.get("method") != "reload_weights" or not isinstance(path, str):
            raise BadRequestError("expected method reload_weights with a weights_path in kwargs", param="method")
        self.engine.load(path)
        return _json({"results": [None]})

    async def _reset_prefix_cache(self, _: web.Request) -> web.StreamResponse:
        if self.engine.n_running:
            return _json({"success": False})
        self.engine.cache.clear()
        return _json({"success": True})

    async def _arm_fault(self, request: web.Request) -> web.StreamResponse:
        body = await _object(request)
        try:
            self.faults.arm(Fault(**{field.name: body[field.name] for field in fields(Fault) if field.name in body}))
        except (TypeError, ValueError) as error:
            raise BadRequestError(str(error)) from error
        return _json({"armed": True})

    # ---- about

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return _json({"version": f"{self.options.wire}.0"})

    async def _models(self, _: web.Request) -> web.StreamResponse:
        entry = {"id": self.options.model, "object": "model", "owned_by": "rollstream", "max_model_len": self.options.max_model_len}
        return _json({"object": "list", "data": [entry]})

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        engine = self.engine
        samples: list[tuple[str, str, float]] = [
            ("num_requests_running", "", engine.n_running),
            ("num_requests_waiting", "", engine.n_waiting),
            ("prefix_cache_queries_total", "", engine.cache.queries),
            ("prefix_cache_hits_total", "", engine.cache.hits),
            ("prompt_tokens_total", "", engine.prompt_tokens),
            ("generation_tokens_total", "", engine.generation_tokens),
            *(
                ("request_success_total", f',finished_reason="{finish}"', n)
                for finish, n in engine.finished.items()
                if finish != "disconnected"
            ),
        ]
        labels = f'engine="0",model_name="{self.options.model}"'
        page = [f"vllm:{name}{{{labels}{more}}} {value:.1f}\n" for name, more, value in samples]
        return web.Response(text="".join((f"process_start_time_seconds {self._started_s:.6f}\n", *page)))

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await _object(request)
        if isinstance(body.get("messages"), list):
            kwargs = body.get("chat_template_kwargs") or {}
            try:
                text = render_chat(
                    body["messages"],
                    body.get("tools") or [],
                    add_generation_prompt=body.get("add_generation_prompt", True),
                    enable_thinking=kwargs.get("enable_thinking", True),
                )
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise BadRequestError(f"the template cannot render this: {error!r}", param="messages") from error
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            raise BadRequestError("expected a prompt or messages", param="prompt")
        tokens = self.tokenizer.encode_template(text)
        return _json({"count": len(tokens), "max_model_len": self.options.max_model_len, "tokens": tokens, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        tokens = (await _object(request)).get("tokens")
        if not isinstance(tokens, list) or not all(type(id_) is int and 0 <= id_ < self.tokenizer.vocab_size for id_ in tokens):
            raise BadRequestError("tokens must be a list of ids of the vocabulary", param="tokens")
        return _json({"prompt": self.tokenizer.decode(tokens)})


async def _object(request: web.Request) -> Body:
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"expected a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError(f"expected a JSON object, got {type(body).__name__}")
    return body


def _texts(body: Body, name: str) -> list[str]:
    values = body.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadRequestError(f"{name} must be a list of texts", param=name)
    return values


def _json(body: Body, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


async def serve_until(stop: asyncio.Event, server: ScriptedServer, ready: Callable[[str], None]) -> None:
    """Run a server until `stop`; `ready` is told its address."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(server)
        ready(server.url)
        await stop.wait()
