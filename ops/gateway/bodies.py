"""Bodies of requests: read within a bound of bytes, of time, and of what all of them together may take.

Invariants
    - Bytes are reserved before they are read, as many as the request says or, when it does not say, as many as one may have. So what many
      clients send at once stays within the budget, and one beyond it is told to come again.
    - Nothing is decompressed, and values are counted before they are made: a few bytes cannot become many.
    - What comes out is a JSON object of at most `MAX_SCHEMA`, or a refusal that says what was expected.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import orjson
from aiohttp import web

from ops.gateway.refusals import Refusal

MAX_SCHEMA = 1
"""Of requests; `schema_version` may say which one a client writes."""
VERSION_FIELD = "schema_version"
MOST_VALUES = 200_000
"""In one body: a value of two bytes takes a hundred in memory, and each one is looked at more than once."""
LONG_NUMBER = re.compile(rb"[0-9]{19}")
NAN = b"NaN"
SMALL_BYTES = 128 * 1024
"""Checked in a few milliseconds."""
T = TypeVar("T")


class BodyBudget:
    """What all bodies that are being read may take."""

    def __init__(self, *, one: int, all_of_them: int, seconds: float) -> None:
        self._one = one
        self._left = all_of_them
        self._seconds = seconds

    @property
    def free_bytes(self) -> int:
        return self._left

    async def read_object(self, request: web.Request, *, may_be_empty: bool = False, missing_is_null: bool = False) -> dict[str, object]:
        """The JSON object in a request.

        Args:
            missing_is_null: as of `parse_object`.

        Raises:
            Refusal: 400 no JSON object, 408 too slow, 413 too large, 415 not JSON, 503 too many at once.
        """
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refusal(415, "compressed", "expected the body as it is: leave out Content-Encoding")
        raw = await self._read(request)
        if not raw.strip() and may_be_empty:
            return {}
        # a page in a browser can send any body without being asked first, but not under this name
        if request.content_type != "application/json":
            raise Refusal(415, "not_json", f"expected Content-Type: application/json, got {request.content_type[:80]!r}")
        if len(raw) > SMALL_BYTES:
            return await asyncio.to_thread(parse_object, raw, missing_is_null=missing_is_null)
        return parse_object(raw, missing_is_null=missing_is_null)

    async def _read(self, request: web.Request) -> bytes:
        said = request.content_length
        if said is not None and said > self._one:
            raise self._too_large(f"got {said:,}")
        with self._reserved(self._one if said is None else said):
            pieces, n_bytes = [], 0
            try:
                async with asyncio.timeout(self._seconds):
                    async for piece in request.content.iter_any():
                        n_bytes += len(piece)
                        if n_bytes > self._one:
                            raise self._too_large("got more")
                        pieces.append(piece)
            except TimeoutError:
                raise Refusal(408, "slow_body", f"the body did not come within {self._seconds:g} s: send it again, faster") from None
            except (web.RequestPayloadError, ConnectionError) as error:
                raise Refusal(400, "broken_body", f"the body broke off: {type(error).__name__}") from None
            return b"".join(pieces)

    def _too_large(self, came: str) -> Refusal:
        return Refusal(413, "too_large", f"expected at most {self._one:,} bytes, {came}: send a path or a name in place of long content")

    @contextmanager
    def _reserved(self, n_bytes: int) -> Iterator[None]:
        if n_bytes > self._left:
            raise Refusal(503, "busy", "the gateway reads as many requests as it has room for: send it again", retry_after_s=1.0)
        self._left -= n_bytes
        try:
            yield
        finally:
            self._left += n_bytes


def _has_too_many_values(raw: bytes) -> bool:
    """Whether there are more than may be. Commas divide values; those in texts do not count.

    By few operations on all of the bytes: a pattern would hold the interpreter for seconds.
    """
    if raw.count(b",") + raw.count(b"[") <= MOST_VALUES:
        return False
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * MOST_VALUES:  # two a text, and at most two texts a value: it and its name
        return True
    between_texts = b"".join(bare.split(b'"')[::2])
    return sum(map(between_texts.count, (b",", b"[", b"{"))) > MOST_VALUES


async def checked(request: web.Request, check: Callable[[], T]) -> T:
    """What checking a request gives; a large one is checked in a thread, since millions of values take seconds in which nobody else is
    served.

    Args:
        check: looks at each value of the body.
    """
    said = request.content_length
    if said is not None and said <= SMALL_BYTES:
        return check()
    return await asyncio.to_thread(check)


def parse_object(raw: bytes, *, missing_is_null: bool = False) -> dict[str, object]:
    """A JSON object without its version.

    Args:
        missing_is_null: take NaN, which is no JSON and what Python's own writer makes of a value that a table has not, as null.

    Raises:
        Refusal: it is none, has too many values, or is written for a newer gateway.
    """
    if _has_too_many_values(raw):
        raise Refusal(
            413, "too_large", f"expected at most {MOST_VALUES:,} values, got more: send a path or a name in place of long content"
        )
    try:
        found = _with_nulls(raw) if missing_is_null and NAN in raw else orjson.loads(raw)
        if LONG_NUMBER.search(raw) is not None:
            # orjson makes a float of an integer above 64 bits; checks refuse it as the integer that it is
            found = json.loads(raw, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "not_json", f"expected a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise Refusal(400, "not_json", f"expected a JSON object, got {_kind(found)}")
    version = found.pop(VERSION_FIELD, MAX_SCHEMA)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise Refusal(422, "invalid", f"expected a whole number of at least 1, got {version!r:.40}", field=VERSION_FIELD)
    if version > MAX_SCHEMA:
        raise Refusal(
            422,
            "newer_schema",
            f"written for schema {version}, this gateway reads up to {MAX_SCHEMA}: upgrade rollstream there",
            field=VERSION_FIELD,
        )
    return found


def _with_nulls(raw: bytes) -> object:
    try:
        return orjson.loads(raw)  # the word may stand in a text alone
    except orjson.JSONDecodeError:
        found = json.loads(raw, parse_constant=_constant)
    try:
        orjson.dumps(found)
    except TypeError as error:  # texts that are no Unicode, which the other reader takes
        raise ValueError(str(error)) from None
    return found


def _constant(word: str) -> None:
    if word != "NaN":
        raise ValueError(f"{word} is no number of JSON")


def _kind(value: object) -> str:
    kinds: Mapping[type, str] = {
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return kinds[type(value)]


__all__ = ["MAX_SCHEMA", "VERSION_FIELD", "BodyBudget", "checked", "parse_object"]
