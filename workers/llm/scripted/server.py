"""Servers of models: the routes of a wire over an engine of ours, in process or as a process of its own. The scripted server is one.

A client that closes its connection ends its call, as in vLLM: the handler of a request is cancelled with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import orjson
from aiohttp import web

from workers.llm.scripted.engine import Engine
from workers.llm.scripted.faults import Fault, Faults
from workers.llm.scripted.http import BadRequestError, Body, answer_json, read_object
from workers.llm.scripted.line import EngineBusyError, EnginePausedError
from workers.llm.scripted.model_routes import ModelRoutes
from workers.llm.scripted.options import ServerOptions
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.problems import Problem, ProblemBank
from workers.llm.scripted.routes import Handler, Routes
from workers.llm.scripted.served_engine import ServedEngine
from workers.llm.scripted.sglang_routes import SglangRoutes
from workers.llm.scripted.vllm_routes import VllmRoutes
from workers.llm.tokenizer import Tokenizer, load

MAX_BODY_BYTES = 64 * 2**20
BACKLOG = 2048
"""As vLLM's. With fewer a Unix socket refuses the workers of a node that all connect at once."""


E = TypeVar("E", bound=ServedEngine)


class ModelServer(Generic[E]):
    """A wire of vLLM or SGLang over an engine. `async with` starts and stops it.

    Args:
        options: what it imitates.
        tokenizer: of the model.
        new_engine: makes the engine; another one after a restart.
        host: address to bind; loopback unless somebody asks for more.
        port: 0 = any free one.
        socket_path: a Unix socket instead of a port.
    """

    def __init__(
        self,
        options: ServerOptions,
        tokenizer: Tokenizer,
        new_engine: Callable[[], E],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        socket_path: Path | None = None,
    ) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self._new_engine = new_engine
        self.engine = new_engine()
        self.routes: Routes = SglangRoutes(self) if self.options.is_sglang else VllmRoutes(self)
        self.faults = Faults()
        self.requests: deque[tuple[str, Body]] = deque(maxlen=256)
        """The last generation requests, path and body; for whoever wants to see what was sent."""
        self.url = ""
        self._numbers = itertools.count()
        self.started_s = time.time()
        """Names this start of the server."""
        self._used: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        """Connections that have carried a request: none of them survives a restart."""
        self._where = (host, port, socket_path)
        self._runner: web.AppRunner | None = None

    def restart(self, *, spared: asyncio.BaseTransport | None = None) -> None:
        """As if the process had died and come again at once: connections break, and everything that it was told is forgotten.

        Args:
            spared: a connection that finds the new process at its other end.
        """
        for transport in self.connections:
            if transport is not spared:
                transport.abort()
        self._used.clear()
        self.engine = self._new_engine()
        self.started_s = max(time.time(), self.started_s + 0.001)

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
        app.on_response_prepare.append(self._close_after)
        for path in self.routes.generation:
            app.router.add_route("POST", path, self._generation)
        self.routes.add_to(app)
        ModelRoutes(self, self.routes).add_to(app)
        app.router.add_route("POST", "/scripted/faults", self._arm_fault)
        return app

    async def _close_after(self, _: web.Request, response: web.StreamResponse) -> None:
        if not self.options.keepalive_s:
            response.force_close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        key = self.options.api_key
        is_guarded = self.options.key_on_every_route or self.routes.is_guarded(request.path)
        if key and is_guarded and request.headers.get("authorization") != f"Bearer {key}":
            return answer_json(self.routes.error("Unauthorized", "AuthenticationError", 401), 401)
        if request.path not in self.routes.generation:
            fault = self.faults.take(request.path)
            if fault is not None and fault.kind == "restart":
                await self._restart_before(request)
            elif fault is not None:
                return await self._fail(request, fault)
        try:
            return await handler(request)
        except BadRequestError as error:
            return answer_json(self.routes.error(error.message, error.kind, error.status, error.param), error.status)
        except EngineBusyError:
            return answer_json(self.routes.error("The engine is currently busy", "ServiceUnavailableError", 503), 503)
        except EnginePausedError:
            return answer_json(self.routes.error("The engine is paused", "engine_paused", 503), 503)
        finally:
            if request.transport is not None:
                self._used.add(request.transport)

    # ---- generation

    async def _generation(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        self.requests.append((request.path, body))
        fault = self.faults.take(request.path)
        if fault is not None and fault.kind in ("status", "disconnect", "hang"):
            return await self._fail(request, fault)
        if fault is not None and fault.kind == "restart":
            await self._restart_before(request)
            fault = None
        name = request.headers.get("x-request-id") or self.routes.id_in(body) or f"anonymous-{next(self._numbers)}"
        call = self.routes.read(request.path, body, str(name))
        answer = self.routes.write(request.path, body, call, await self.engine.run(call))
        if fault is not None and fault.kind == "break_off":
            return await self._break_off(request, orjson.dumps(answer))
        if fault is not None:
            bent = self.routes.corrupt(answer, fault.corruption)
            return web.Response(body=bent, content_type="application/json") if isinstance(bent, bytes) else answer_json(bent)
        return answer_json(answer)

    async def _restart_before(self, request: web.Request) -> None:
        """The request meets the new process, over a connection that was made for it; one that stood before has broken."""
        is_new = request.transport is not None and request.transport not in self._used
        self.restart(spared=request.transport if is_new else None)
        if not is_new:
            await asyncio.Event().wait()  # until the end of its connection is noticed

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.kind == "hang":
            await asyncio.Event().wait()  # until the client goes
        if fault.kind == "disconnect" and request.transport is not None:
            request.transport.close()
            await asyncio.Event().wait()
        headers = {} if fault.retry_after_s is None else {"retry-after": str(fault.retry_after_s)}
        return answer_json(self.routes.error(fault.message, "made_to_fail", fault.status), fault.status, headers)

    async def _break_off(self, request: web.Request, answer: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": str(len(answer))})
        await response.prepare(request)
        await response.write(answer[: len(answer) // 2])
        if request.transport is not None:
            request.transport.abort()
        await asyncio.Event().wait()
        return response

    async def _arm_fault(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        try:
            self.faults.arm(Fault(**{field.name: body[field.name] for field in fields(Fault) if field.name in body}))
        except (TypeError, ValueError) as error:
            raise BadRequestError(str(error)) from error
        return answer_json({"armed": True})


class ScriptedServer(ModelServer[Engine]):
    """The scripted model as a server.

    Args:
        options: what it imitates.
        problems: where its policy knows answers from.
        tokenizer: our own small one unless given.
        host: see `ModelServer`.
        port: see there.
        socket_path: see there.
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
        options, tokenizer = options or ServerOptions(), tokenizer or load()
        self.policy = Policy(tokenizer, ProblemBank(problems), options.policy)
        super().__init__(options, tokenizer, self._scripted_engine, host=host, port=port, socket_path=socket_path)

    def _scripted_engine(self) -> Engine:
        engine = Engine(self.options, self.tokenizer, self.policy)
        engine.loaded = self.options.weights or None
        return engine


async def serve_until(stop: asyncio.Event, server: ModelServer[Any], ready: Callable[[str], None]) -> None:
    """Run a server until `stop`; `ready` is told its address."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(server)
        ready(server.url)
        await stop.wait()
