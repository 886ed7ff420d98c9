"""Bodies in and out of the scripted server's routes."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

Body = dict[str, Any]
"""A JSON object; Any because it is a tree of plain values read or written at once."""


class BadRequestError(Exception):
    """A 400, or the status given."""

    def __init__(self, message: str, *, param: str = "", status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.kind = message, param, status, kind


async def read_object(request: web.Request) -> Body:
    """The JSON object of a request."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"expected a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError(f"expected a JSON object, got {type(body).__name__}")
    return body


def texts_in(body: Body, name: str) -> list[str]:
    """A list of texts; none when it is not there."""
    values = body.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise BadRequestError(f"{name} must be a list of texts", param=name)
    return values


def text_in(body: Body, name: str) -> str:
    """A text that must be there."""
    value = body.get(name)
    if not isinstance(value, str):
        raise BadRequestError(f"{name} must be a text", param=f"body.{name}")
    return value


def answer_json(body: Body | list[Body], status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")
