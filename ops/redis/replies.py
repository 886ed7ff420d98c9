"""Replies of Redis with the type the server gave them, and how they are shown.

A client library answers what programs want: bytes, whether the server sent a status or a string. A person at a prompt must see the
difference between the status `OK` and a value that reads "OK", so the prompt reads replies with a parser of its own, which plugs into a
redis-py connection.

Shown in three ways: `readable` for people (quoted, numbered, nested), `raw` for pipes (one value a line), `json` for programs.
"""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

import redis


class Status(bytes):
    """A simple string: a word of the server, not a value somebody stored. Bytes, as redis-py compares it with `OK` while it connects."""


class Verbatim(bytes):
    """A text that the server wants shown as it is."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Double:
    """A floating point number, in the server's own digits."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """An array, a set or a push message."""

    kind: str
    """`array`, `set` or `push`."""
    values: tuple[Reply, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map, in the server's order; its keys may be of any type."""

    pairs: tuple[tuple[Reply, Reply], ...]


Reply = Status | Verbatim | bytes | int | bool | None | Failure | Double | Items | Pairs
_KINDS = {b"*": "array", b"~": "set", b">": "push"}


class _Connected(Protocol):
    """What redis-py hands a parser: a connection, whose socket parsers read."""

    _sock: socket.socket


class TypedParser:
    """Reads replies for a redis-py connection (`parser_class`); speaks RESP2 and RESP3."""

    def __init__(self, socket_read_size: int) -> None:
        self._read_size = socket_read_size
        self._file: BinaryIO | None = None

    def on_connect(self, connection: _Connected) -> None:
        """Called by redis-py with a fresh socket."""
        self._file = cast(BinaryIO, connection._sock.makefile("rb", buffering=max(self._read_size, 8192)))  # typed wider for other modes

    def on_disconnect(self) -> None:
        """Called by redis-py when the socket goes."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read_response(self, disable_decoding: bool = False, **_: object) -> Reply | redis.ResponseError:
        """One reply. An error comes as redis-py's own, which the connection raises."""
        reply = self._read()
        return redis.ResponseError(reply.text) if isinstance(reply, Failure) else reply

    def _line(self) -> bytes:
        if self._file is None:
            raise redis.ConnectionError("not connected")
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise redis.ConnectionError("the server closed the connection")
        return line[:-2]

    def _exactly(self, size: int) -> bytes:
        assert self._file is not None, "a line was read from it"
        data = self._file.read(size + 2)
        if len(data) != size + 2:
            raise redis.ConnectionError("the server closed the connection in the middle of a reply")
        return data[:-2]

    def _read(self) -> Reply:
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return Status(rest)
            case b"-":
                return Failure(rest.decode(errors="replace"))
            case b"!":
                return Failure(self._exactly(int(rest)).decode(errors="replace"))
            case b":" | b"(":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else self._exactly(int(rest))
            case b"=":
                return Verbatim(self._exactly(int(rest))[4:])
            case b"_":
                return None
            case b"#":
                return rest == b"t"
            case b",":
                return Double(rest.decode())
            case b"*" | b"~" | b">":
                return None if rest == b"-1" else Items(_KINDS[kind], tuple(self._read() for _ in range(int(rest))))
            case b"%":
                return Pairs(tuple((self._read(), self._read()) for _ in range(int(rest))))
            case b"|":  # attributes of the reply that follows: about it, not part of it
                for _ in range(2 * int(rest)):
                    self._read()
                return self._read()
            case _:
                raise redis.InvalidResponse(f"the server sent {line[:40]!r}, which is no reply")


def readable(reply: Reply, indent: str = "") -> str:
    """For a person: typed, quoted, numbered; no newline at the end."""
    match reply:
        case Failure(text):
            return f"(error) {text}"
        case Status() | Verbatim():
            return reply.decode(errors="replace")
        case bytes():
            return quoted(reply)
        case None:
            return "(nil)"
        case bool():
            return f"({str(reply).lower()})"
        case int():
            return f"(integer) {reply}"
        case Double(text):
            return f"(double) {text}"
        case Items(kind, ()):
            return f"(empty {kind})"
        case Items(kind, values):
            width = len(str(len(values)))
            inner = indent + " " * (width + 2)
            mark = {"array": ")", "set": "~", "push": ">"}[kind]
            return f"\n{indent}".join(f"{number:>{width}}{mark} {readable(value, inner)}" for number, value in enumerate(values, 1))
        case Pairs(()):
            return "(empty hash)"
        case Pairs(pairs):
            width = len(str(len(pairs)))
            inner = indent + " " * (width + 2)
            return f"\n{indent}".join(
                f"{number:>{width}}# {readable(key, inner)} => {readable(value, inner)}" for number, (key, value) in enumerate(pairs, 1)
            )


def raw(reply: Reply) -> bytes:
    """For a pipe: the bytes of each value on a line of its own, the value of a map beside its key; no newline at the end."""
    match reply:
        case Failure(text) | Double(text):
            return text.encode()
        case bytes():
            return bytes(reply)
        case None:
            return b""
        case bool():
            return b"(true)" if reply else b"(false)"
        case int():
            return b"%d" % reply
        case Items(_, values):
            return b"\n".join(map(raw, values))
        case Pairs(pairs):
            return b"\n".join(raw(key) + b" " + raw(value) for key, value in pairs)


def as_json(reply: Reply) -> str:
    """For a program, on one line. Bytes that are no UTF-8 come as `{"base64": ...}`, an error as `{"error": ...}`."""
    return json.dumps(_json_value(reply), ensure_ascii=False)


def _json_value(reply: Reply) -> object:
    match reply:
        case Failure(text):
            return {"error": text}
        case bytes():
            try:
                return reply.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(reply).decode()}
        case Double(text):
            number = float(text)
            return number if number - number == 0 else text  # JSON knows neither inf nor nan
        case Items(_, values):
            return [_json_value(value) for value in values]
        case Pairs(pairs):
            return {_json_key(key): _json_value(value) for key, value in pairs}
        case _:
            return reply


def _json_key(reply: Reply) -> str:
    value = _json_value(reply)
    return value if isinstance(value, str) else json.dumps(value)


_ESCAPES = {0x5C: "\\\\", 0x22: '\\"', 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x07: "\\a", 0x08: "\\b"}


def quoted(data: bytes) -> str:
    """A value in double quotes, in a form that `split_words` reads back to the same bytes."""
    return '"' + "".join(_ESCAPES.get(b) or (chr(b) if 32 <= b < 127 else f"\\x{b:02x}") for b in data) + '"'
