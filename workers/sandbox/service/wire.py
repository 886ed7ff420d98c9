"""Frames between workers and the node service, and what is in them.

    frame    length (4 bytes, big endian), then so many bytes of msgpack: a map with text keys

    -> {"hello": 1, "token", "boot", "fleet"}      <- {"hello": 1, "node", "epoch", "backend", "backends", ...}  or {"error"}, and the end
    -> {"id", "op", ...}                           <- {"id", "ok": ...}  or {"id", "error": {"kind", "text", ...}}
    -> {"cancel": id}                              the call ends what it started; its answer is the error `cancelled`
    <-> {"id", "chunk": bytes}, {"id", "end": 1}   an archive on its way; {"id", "took": 1} goes back for each chunk that was taken
    <-> {"id": 0, "part": bytes, "more": 0 or 1}   a large message in pieces, one at a time and way; "dropped": the rest will not come
    <- {"degraded": why}                           from now on the node starts nothing, and why; empty = it does again. In the hello too
    <- {"gone": why, "taken": 0 or 1}              the sandbox of this connection has ended; taken: by the node, over the worker's head

1. A length above the limit of the connection (`HELLO_BYTES` before the hello, then `MAX_FRAME_BYTES`) is refused when its four bytes are
   there: nothing is ever held for it.
2. No more than `WINDOW` chunks of an archive are on their way: who takes slowly slows the sender down, and a cancel still comes through.
3. Errors travel by a word and their fields, results by their fields: nothing names a class, nothing is unpickled. Unknown fields are
   ignored; of an unknown error its text is kept.
4. Text may hold what is no valid UTF-8 (names of files do): surrogates pass as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, cast

import msgpack

from pipeline import codec
from pipeline.errors import RollstreamError
from workers.sandbox.errors import (
    BadImage,
    ExecTimeout,
    ImageError,
    ImageMissing,
    NodeUnavailable,
    NotServedHere,
    SandboxBusy,
    SandboxError,
    SandboxFileError,
    SandboxGone,
    SandboxLeak,
    SandboxRefused,
    SandboxStartError,
    SandboxTaken,
    SessionStartError,
    SnapshotError,
    StaleAttempt,
)

VERSION = 1
HEADER = struct.Struct(">I")
HELLO_BYTES = 4096
MAX_FRAME_BYTES = 16 * 1024 * 1024
PART_BYTES = 1024 * 1024
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""Largest message in parts: the content of a file, the input or output of a command. More goes as an archive."""
CHUNK_BYTES = 256 * 1024
WINDOW = 4
MAX_CALLS = 256
"""Calls of one connection that run at once, beside those that end its sandbox. One more, and the service takes the peer for broken."""
ENDS = frozenset({"park", "stop", "kill"})
"""They need not wait until others have ended."""
MAX_ENDS = 8

Message = dict[str, Any]

KINDS: dict[str, type[RollstreamError]] = {
    "sandbox": SandboxError,
    "not_started": SandboxStartError,
    "node_unavailable": NodeUnavailable,
    "not_served": NotServedHere,
    "refused": SandboxRefused,
    "stale_attempt": StaleAttempt,
    "busy": SandboxBusy,
    "gone": SandboxGone,
    "taken": SandboxTaken,
    "session_not_started": SessionStartError,
    "snapshot": SnapshotError,
    "exec_timeout": ExecTimeout,
    "leak": SandboxLeak,
    "image": ImageError,
    "image_missing": ImageMissing,
    "bad_image": BadImage,
    "file": SandboxFileError,
}
"""The word of each error; a class without one travels as its nearest base."""
CANCELLED, INVALID, FAILED = "cancelled", "invalid", "failed"
"""Answers that are no error of a sandbox: the call was cancelled, its arguments make no sense, the service itself broke."""

_WORDS = {cls: word for word, cls in KINDS.items()}


class WireError(Exception):
    """The peer does not speak this protocol; the connection ends."""


def pack(message: Mapping[str, object]) -> bytes:
    """One message as msgpack, without a header."""
    return cast(bytes, msgpack.packb(message, default=codec.pack_other, unicode_errors="surrogatepass"))


def frame(body: bytes) -> bytes:
    """A packed message with its header."""
    return HEADER.pack(len(body)) + body


def unpack(body: bytes | bytearray | memoryview) -> Message:
    """A message.

    Raises:
        WireError
    """
    try:
        message = msgpack.unpackb(body, strict_map_key=True, unicode_errors="surrogatepass")
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:
        raise WireError(f"a frame that is no msgpack: {type(error).__name__}") from error
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise WireError(f"a frame that holds a {type(message).__name__}, expected a map with text keys")
    return message


class FrameDecoder:
    """Cuts a stream of bytes into messages. Never holds more than one frame, nor for a frame that is too long."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.frames = 0
        """Whole frames so far."""
        self._held = bytearray()

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now.

        Raises:
            WireError: what came is none of ours; nothing more may be fed.
        """
        if self._held:
            self._held += data
            data = bytes(self._held) if len(self._held) >= self._wanted() else b""
            if not data:
                return []
            self._held.clear()
        messages = []
        view, at = memoryview(data), 0
        while len(data) - at >= HEADER.size:
            length = self._checked(HEADER.unpack_from(data, at)[0])
            end = at + HEADER.size + length
            if end > len(data):
                break
            messages.append(unpack(view[at + HEADER.size : end]))
            self.frames += 1
            at = end
        if at < len(data):
            self._held += view[at:]
        return messages

    def _wanted(self) -> int:
        if len(self._held) < HEADER.size:
            return HEADER.size
        return HEADER.size + self._checked(HEADER.unpack_from(self._held)[0])

    def _checked(self, length: int) -> int:
        if not 0 < length <= self.limit:
            raise WireError(f"a frame of {length:,} bytes, at most {self.limit:,} are taken here")
        return length


# -- errors -------------------------------------------------------------------------------------------------------------------------------


def error_to_map(error: RollstreamError) -> Message:
    """One of our errors, for the wire: its word, its text, and what it knows."""
    word = next((_WORDS[cls] for cls in type(error).__mro__ if cls in _WORDS), FAILED)
    fields = {name: value for name, value in vars(error).items() if not name.startswith("_") and _is_plain(value)}
    return {"kind": word, "text": str(error), "fields": fields}


def _is_plain(value: object) -> bool:
    """Whether it travels as it is. What an error knows beside that (a path, another error) is in its text."""
    return value is None or isinstance(value, str | bytes | bool | int | float) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def error_from_map(values: Mapping[str, Any]) -> Exception:
    """The error that `error_to_map` wrote. One of a kind that is not known here is a `SandboxError` with its text."""
    word, text, fields = values.get("kind"), values.get("text"), values.get("fields")
    text = text if isinstance(text, str) else "the node service did not say what failed"
    if word == INVALID:
        return ValueError(text)
    cls = KINDS.get(str(word), SandboxError)
    error = cls.__new__(cls, text)  # the text is made already: a constructor would make it again
    Exception.__init__(error, text)
    for name, value in fields.items() if isinstance(fields, dict) else ():
        if name.isidentifier() and not name.startswith("_"):
            setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error
