"""Answers: JSON or msgpack by what the client accepts, arrays in both, and written before a client's time is over.

In JSON an array is a list, with null where a number is none (a logprob where nothing was sampled). In msgpack it is a map of `dtype`
(`<u4`, `u1`, `<f4`), `shape` and `data`, the raw bytes: `numpy.frombuffer(data, dtype)` has it without a copy, bit for bit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum

import msgpack
import numpy as np
import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from ops.gateway.refusals import Refusal

JSON, MSGPACK = "application/json", "application/msgpack"
MSGPACK_NAMES = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
WEIGHT = re.compile(r"[01](\.[0-9]{0,3})?\Z")
AT_ONCE = 4
"""Large answers that are made at a time: each is some copies of a trajectory."""


def json_answer(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A small answer as JSON."""
    return web.Response(
        status=status, body=orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), headers=headers, content_type=JSON, charset="utf-8"
    )


def form_of(accept: str) -> str:
    """JSON unless msgpack is preferred: by weight (`q`), and by order where weights are equal.

    Raises:
        Refusal: 406, neither is accepted.
    """
    for name in _accepted(accept) or ["*/*"]:
        if name in MSGPACK_NAMES:
            return MSGPACK
        if name in (JSON, "application/*", "*/*", "text/*", "text/html"):
            return JSON
    raise Refusal(406, "not_acceptable", f"expected Accept: {JSON} or {MSGPACK}, got {accept[:80]!r}")


def _accepted(accept: str) -> list[str]:
    """The names in a header, those that are wanted most first."""
    found = []
    for part in accept.split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        weight = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        if name and (not WEIGHT.match(weight) or float(weight) > 0):
            found.append((-float(weight) if WEIGHT.match(weight) else -1.0, name))
    if accept.strip(" ,") and not found:
        return ["nothing"]
    return [name for _, name in sorted(found, key=lambda one: one[0])]


class LargeAnswers:
    """Makes answers that take their time: in threads, few at a time, and no more than clients read.

    Bytes of answers that are made and not sent are counted. Beyond the bound the next ones wait, each holding one of the places in which
    answers are made: so what stands in memory is at most the bound and as many answers as there are places.

    Args:
        most_bytes: of answers that are not sent yet; one that is larger goes alone.
        at_once: places.
    """

    def __init__(self, *, most_bytes: int, at_once: int = AT_ONCE) -> None:
        self._most_bytes = most_bytes
        self._places = asyncio.Semaphore(at_once)
        self._has_room = asyncio.Event()
        self._unsent: dict[web.StreamResponse, int] = {}

    @property
    def unsent_bytes(self) -> int:
        return sum(self._unsent.values())

    async def make(self, value: Callable[[], object], *, form: str = JSON) -> web.Response:
        """An answer; tell `forget` when it is out, or will never be.

        Args:
            value: what is in it, called in the thread.
        """
        async with self._places:
            body = await asyncio.to_thread(_body, value, form)
            while self._unsent and self.unsent_bytes + len(body) > self._most_bytes:
                self._has_room.clear()
                await self._has_room.wait()
            response = web.Response(body=body, content_type=form, charset="utf-8" if form == JSON else None)
            self._unsent[response] = len(body)
        return response

    def forget(self, response: web.StreamResponse) -> None:
        """An answer is out. One that was not made here is none of ours."""
        if self._unsent.pop(response, None) is not None:
            self._has_room.set()


def _body(value: Callable[[], object], form: str) -> bytes:
    return _packed(value()) if form == MSGPACK else orjson.dumps(value(), option=orjson.OPT_SERIALIZE_NUMPY)


def _packed(value: object) -> bytes:
    packed = msgpack.packb(plain(value), use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def plain(value: object) -> object:
    """Records as maps and arrays as maps of their bytes, for msgpack."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        return {"dtype": little.dtype.str.replace("|", ""), "shape": list(value.shape), "data": little.tobytes()}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return value


async def send(request: web.Request, response: web.StreamResponse, *, within_s: float) -> bool:
    """Writes an answer out; whether all of it went to a connection that stood.

    A client that does not read is cut off when its time is over: what it was to get stays where it is.
    """
    try:
        async with asyncio.timeout(within_s):
            writer: AbstractStreamWriter | None = await response.prepare(request)
            await response.write_eof()
            if writer is not None:
                await writer.drain()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return False
    except (ConnectionError, RuntimeError):  # RuntimeError: the transport is closing
        return False
    return request.transport is not None and not request.transport.is_closing()


__all__ = ["JSON", "MSGPACK", "LargeAnswers", "form_of", "json_answer", "plain", "send"]
