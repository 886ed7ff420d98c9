"""The application: every call passes who may, what went wrong, and how its answer is written, in this order and in one place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from ops.gateway.access import Access, Guard
from ops.gateway.answers import json_answer, send
from ops.gateway.openapi import openapi
from ops.gateway.page import POLICY, docs_page
from ops.gateway.refusals import Refusal, refusal_of
from ops.gateway.routes import Route, routes_of
from ops.gateway.state import DELIVERS, Gateway

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UNKNOWN = "other"


class GatewayApplication:
    """Routes and what stands around them."""

    def __init__(self, gateway: Gateway, guard: Guard) -> None:
        self._gateway = gateway
        self._guard = guard
        self.routes = routes_of(gateway)
        self._access = {(route.method, route.path): route.access for route in self.routes}
        self.calls = 0
        """That are being answered, readers of events not counted."""
        self.idle = asyncio.Event()
        """Set while no call is being answered."""
        self.idle.set()
        pages = {"/openapi.json": self._openapi, "/docs": self._docs}
        self._access |= {("GET", path): Access.READ for path in pages}
        self.app = web.Application(middlewares=[self._around], client_max_size=gateway.settings.max_body_bytes)
        for route in self.routes:
            self.app.router.add_route(route.method, route.path, route.handler)
        for path, handler in pages.items():
            self.app.router.add_route("GET", path, handler)

    # ---- each call

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        gateway, connections = self._gateway, self._gateway.connections
        transport, began_s = request.transport, time.monotonic()
        route = self._route(request)
        is_stream = route == "/events"
        if connections is not None:
            connections.request_began(transport)
        if not is_stream:
            self.calls += 1
            self.idle.clear()
        gateway.metrics.in_flight.inc()
        code, was_taken = 499, False  # as some servers log it: the client went first
        response: web.StreamResponse | None = None
        try:
            response = await self._answer(request, handler)
            code, was_taken = response.status, True
            if not response.prepared:
                if not request.content.at_eof():
                    response.force_close()  # what is left of the body is not worth reading
                was_taken = await send(request, response, within_s=gateway.settings.write_s)
            if was_taken and DELIVERS in request:
                gateway.work.delivered(request[DELIVERS])
            return response
        finally:
            if response is not None:
                gateway.large.forget(response)
            gateway.metrics.in_flight.dec()
            gateway.metrics.answered(
                request.method if route != UNKNOWN else "*", route, code, time.monotonic() - began_s, was_taken=was_taken
            )
            if not is_stream:
                self.calls -= 1
                if not self.calls:
                    self.idle.set()
            if connections is not None:
                connections.request_ended(transport)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._guard.check(self._access.get((request.method, self._route(request)), Access.READ), request.headers)
            return await handler(request)
        except web.HTTPNotFound:
            return Refusal(404, "no_such_route", f"no route {request.path[:80]!r}: GET /docs lists them").response()
        except web.HTTPMethodNotAllowed as wrong:
            allowed = ", ".join(sorted(wrong.allowed_methods))
            response = Refusal(405, "wrong_method", f"{request.path[:80]!r} takes {allowed}, not {request.method[:20]!r}").response()
            response.headers["Allow"] = allowed
            return response
        except web.HTTPException as other:
            return Refusal(other.status, "refused", other.reason or "refused").response()
        except Exception as error:  # noqa: BLE001  # the edge: whatever it is, it becomes an answer of one shape, and what is unforeseen is logged
            return refusal_of(error).response()

    @staticmethod
    def _route(request: web.Request) -> str:
        """The path as the table has it: of few values, whatever clients send."""
        resource = request.match_info.route.resource
        return UNKNOWN if resource is None else resource.canonical

    # ---- what the routes are

    async def _openapi(self, _: web.Request) -> web.Response:
        return json_answer(openapi(self.routes))

    async def _docs(self, _: web.Request) -> web.Response:
        page = docs_page(self.routes, self._gateway.run.id)
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": POLICY})


__all__ = ["GatewayApplication", "Route"]
