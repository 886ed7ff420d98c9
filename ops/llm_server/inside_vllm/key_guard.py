"""Demands the server's key on every route of vLLM: `--middleware key_guard.KeyOnEveryRoute`.

vLLM's own key guards `/v1`, `/v2`, `/inference` and `/cohere` only: whoever reaches the address may pause the engine, load weights into it,
and read its metrics. The key is the one that vLLM has (`VLLM_API_KEY`); without it the server does not start.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# Any: these are the types of ASGI, which any server calls with

REFUSED = b'{"error": {"message": "the key of this server is missing or wrong", "type": "AuthenticationError", "code": 401}}'


class KeyOnEveryRoute:
    """An ASGI application in front of vLLM's. Nothing of a request without the key reaches that."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._wanted = b"Bearer " + os.environ["VLLM_API_KEY"].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one WebSocket, or the life of the server, which has no sender."""
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(REFUSED)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})

    def _has_key(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._wanted)
