"""The key on every route of vLLM: an ASGI application in front of another."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from ops.llm_server.inside_vllm.key_guard import KeyOnEveryRoute

Message = MutableMapping[str, Any]


class Application:
    """What stands behind: remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Message, receive: object, send: object) -> None:
        self.reached.append(scope.get("path", scope["type"]))


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Application:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    return Application()


def asked(application: Application, scope: Message) -> list[Message]:
    """What is answered in the application's place."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing of a request is read before its key")

    asyncio.run(KeyOnEveryRoute(application)(scope, receive, send))
    return sent


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/update_weight_version", "/metrics", "/health", "/tokenize", "/v1/models"])
@pytest.mark.parametrize("given", [None, b"", b"Bearer ", b"Bearer wrong", b"s3cret", b"bearer s3cret"])
def test_a_request_without_the_key_reaches_nothing(application: Application, path: str, given: bytes | None) -> None:
    headers = [(b"host", b"x")] if given is None else [(b"authorization", given)]

    start, body = asked(application, {"type": "http", "method": "OPTIONS", "path": path, "headers": headers})

    assert (start["status"], application.reached) == (401, [])
    assert b"s3cret" not in body["body"]


def test_with_the_key_everything_is_reached(application: Application) -> None:
    assert asked(application, {"type": "http", "path": "/pause", "headers": [(b"authorization", b"Bearer s3cret")]}) == []
    assert asked(application, {"type": "lifespan"}) == []

    assert application.reached == ["/pause", "lifespan"]


def test_a_socket_without_the_key_is_closed_before_it_is_accepted(application: Application) -> None:
    assert asked(application, {"type": "websocket", "path": "/v1/realtime", "headers": []}) == [{"type": "websocket.close", "code": 1008}]
    assert application.reached == []


def test_a_server_without_a_key_does_not_start(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY")

    with pytest.raises(KeyError):
        KeyOnEveryRoute(application)
