"""One end of a connection: bytes to messages, messages to bytes, and the bounds that hold for both ways.

1. A small message is one write. Who reads too slowly is not waited for: with more than `MAX_UNSENT_BYTES` unread, or with something unread
   for `Patience.slow_s`, the connection is cut.
2. A large message goes in parts, each when the other end has taken what came before; the parts of two are never mixed.
3. A frame that has begun is whole within `Patience.frame_s`, or the connection is cut.
4. Whatever comes over a connection ends at most that connection: a message that cannot be understood is answered by why, and cut off.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from workers.sandbox.service.wire import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    PART_BYTES,
    FrameDecoder,
    Message,
    WireError,
    frame,
    pack,
    unpack,
)

MAX_UNSENT_BYTES = 64 * 1024 * 1024
LAST_WORD_S = 1.0
"""What a peer that is cut off has to read why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an end of a connection waits for the other."""

    hello_s: float = 10.0
    """A peer that has not said who it is by then is cut off."""
    frame_s: float = 30.0
    """From the beginning of a frame to its end."""
    slow_s: float = 60.0
    """Nothing was read for so long: longer than any stall of a worker that could still renew its leases."""


PATIENCE = Patience()


class MessageTooLarge(ValueError):
    """More than travels as one message."""


class Peer(asyncio.Protocol, ABC):
    """A connection that takes and gives messages.

    Args:
        limit: longest frame that is taken.
        takes_parts: whether messages may be longer than a frame.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES, *, takes_parts: bool = True, patience: Patience = PATIENCE) -> None:
        self.decoder = FrameDecoder(limit)
        self.takes_parts = takes_parts
        self.patience = patience
        self.ended = False
        """Whether nothing can be sent any more."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._may_write: asyncio.Future[None] | None = None
        self._sending_parts = asyncio.Lock()
        self._parts = bytearray()
        self._frame_timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def on_message(self, message: Message) -> None:
        """Takes one message; must not block.

        Raises:
            WireError: it makes no sense here.
        """

    @abstractmethod
    def on_bad_peer(self, why: str) -> None:
        """The other end broke the protocol; the connection is cut after this call."""

    @abstractmethod
    def on_end(self) -> None:
        """The connection has ended, however it did; called once."""

    @property
    def unsent_bytes(self) -> int:
        """What the other end has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # -- sending -------------------------------------------------------------------------------------------------------------------------

    def post(self, message: Mapping[str, object]) -> None:
        """Sends a small message without waiting; nothing when the connection has ended."""
        self._write(pack(message))

    async def send(self, message: Mapping[str, object]) -> None:
        """Sends a message of any size up to `MAX_MESSAGE_BYTES`.

        Raises:
            MessageTooLarge
        """
        body = pack(message)
        if len(body) <= PART_BYTES:
            self._write(body)
            return
        if len(body) > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(f"{len(body):,} bytes in one message, at most {MAX_MESSAGE_BYTES:,} travel: use an archive")
        async with self._sending_parts:
            try:
                for at in range(0, len(body), PART_BYTES):
                    await self.writable()
                    self.post({"id": 0, "part": body[at : at + PART_BYTES], "more": int(at + PART_BYTES < len(body))})
            except asyncio.CancelledError:
                self.post({"id": 0, "part": b"", "dropped": 1})
                raise

    async def writable(self) -> None:
        """Waits until the other end has taken what was sent."""
        if self._may_write is not None and not self.ended:
            await asyncio.shield(self._may_write)

    def close(self) -> None:
        """Ends the connection when what was sent has been taken."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Ends the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, body: bytes) -> None:
        if self.ended or self._transport is None:
            return
        self._transport.write(frame(body))
        if self._may_write is not None and self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._refuse(f"{MAX_UNSENT_BYTES:,} bytes wait to be read")

    # -- called by the event loop -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.decoder.feed(data):
                if self.ended:
                    return
                self._take(message)
        except WireError as error:
            self._refuse(str(error))
            return
        if self.decoder.is_partial and self._frame_timer is None:
            self._frame_timer = self._loop.call_later(self.patience.frame_s, self._check_frame, self.decoder.frames)

    def pause_writing(self) -> None:
        slow_s = self.patience.slow_s
        self._may_write = self._loop.create_future()
        self._slow_timer = self._loop.call_later(slow_s, self._refuse, f"nothing was read for {slow_s:g} s")

    def resume_writing(self) -> None:
        self._stop_waiting_to_write()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._stop_waiting_to_write()
        if self._frame_timer is not None:
            self._frame_timer.cancel()
        self._parts = bytearray()
        self.on_end()

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        part = message.get("part")
        if part is None:
            self.on_message(message)
            return
        if not self.takes_parts:
            raise WireError("a part of a message, where each fits into a frame")
        if not isinstance(part, bytes) or len(self._parts) + len(part) > MAX_MESSAGE_BYTES:
            raise WireError(f"parts of a message that are more than {MAX_MESSAGE_BYTES:,} bytes, or no bytes")
        self._parts += part
        if message.get("dropped"):
            self._parts = bytearray()
        elif not message.get("more"):
            whole, self._parts = self._parts, bytearray()
            self.on_message(unpack(whole))

    def _check_frame(self, frames: int) -> None:
        """A frame is timed from when it was first seen unfinished; others may have come and gone meanwhile."""
        self._frame_timer = None
        if not self.decoder.is_partial:
            return
        if self.decoder.frames == frames:
            self._refuse(f"a frame that was begun was not ended within {self.patience.frame_s:g} s")
        else:
            self._frame_timer = self._loop.call_later(self.patience.frame_s, self._check_frame, self.decoder.frames)

    def _stop_waiting_to_write(self) -> None:
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)
        self._may_write = None
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

    def _refuse(self, why: str) -> None:
        """The connection ends: with a word where the other end may still hear it."""
        if self.ended:
            return
        self.on_bad_peer(why)
        self.ended = True
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() > PART_BYTES:
            self._transport.abort()
        else:
            self._transport.close()
            self._loop.call_later(LAST_WORD_S, self._transport.abort)
