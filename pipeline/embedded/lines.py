"""JSON objects, one a line, over a connected Unix socket: how users, keeper and guard talk.

Both ends are processes of one user in a 0700 folder, so a message is trusted; a line that is no JSON object is a bug and raises.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
"""What `json` answers for an object; the module that reads a message gives its fields types."""


class LineSocket:
    """A socket that carries lines. Owns the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    def fileno(self) -> int:
        """For a selector."""
        return self._sock.fileno()

    def send(self, message: Mapping[str, object]) -> bool:
        """Sends one message; False when the other end is gone, or has not read for so long that its buffer is full.

        Messages are small and few, so a full buffer means a reader that was frozen for a very long time; who gets False drops it, and
        it learns by end of file that it missed something.
        """
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT) == len(data)
        except (BlockingIOError, BrokenPipeError, ConnectionError):
            return False

    def receive(self) -> list[JsonObject] | None:
        """What has come by one read, waiting for it if need be; None at end of file."""
        try:
            data = self._sock.recv(65_536)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait_readable(self, timeout_s: float) -> bool:
        """Whether something, end of file included, can be read within the time."""
        ready, _, _ = select.select([self._sock], [], [], max(0.0, timeout_s))
        return bool(ready)

    def end_sending(self) -> None:
        """Tells the other end that nothing more will come; its answers are still read."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:  # the other end went first
            return

    def interrupt(self) -> None:
        """Makes a `receive` that waits in another thread answer None."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end went first
            return

    def close(self) -> None:
        """Closes the socket; twice is harmless."""
        self._sock.close()
