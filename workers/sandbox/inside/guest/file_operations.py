"""One operation on the files of the sandbox, in a process of its own and on a socket of its own.

What is written or uploaded comes as plain bytes to their end. Answers are frames: DATA, a piece of content; ENTRIES, some names of a folder
as JSON; DONE, as JSON, the last: {} or {"trouble", "detail"} or {"failed"}.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from workers.sandbox import file_tree
from workers.sandbox.inside.guest import frames

DATA, ENTRIES, DONE = 33, 34, 35
PIECE_BYTES = 256 * 1024
ENTRIES_A_FRAME = 100
"""A name has at most 255 bytes, twice as many digits, and some more for its kind and size."""
DETAIL_CHARACTERS = 1000


class Pieces:
    """What is written to it goes out as frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: bytes) -> int:
        for at in range(0, len(data), frames.MAX_CONTENT_BYTES):
            self.frame(DATA, data[at : at + frames.MAX_CONTENT_BYTES])
        return len(data)

    def frame(self, kind: int, data: bytes) -> None:
        self._connection.sendall(frames.frame(kind, 0, data))


def operate(request: Mapping[str, Any], folder: str, connection: socket.socket) -> None:
    """From the request to its answer. A link on the way to a path means what it means here."""
    pieces = Pieces(connection)
    incoming = cast("IO[bytes]", connection.makefile("rb", buffering=PIECE_BYTES))
    try:
        answer = _do(request, Path(folder) / os.fsdecode(bytes.fromhex(request["path"])), incoming, pieces)
    except file_tree.TreeError as error:
        answer = {"trouble": error.trouble, "detail": error.detail[:DETAIL_CHARACTERS]}
    except (BrokenPipeError, ConnectionResetError):  # nobody waits for it any more
        return
    except Exception as error:  # noqa: BLE001  # whatever it is, it is said; a traceback would read files that are the guest's
        answer = {"failed": repr(error)[:DETAIL_CHARACTERS]}
    pieces.frame(DONE, json.dumps(answer).encode())
    while incoming.read(PIECE_BYTES):  # what was refused is taken all the same: closing on it would take the answer away
        pass


def _do(request: Mapping[str, Any], path: Path, incoming: IO[bytes], pieces: Pieces) -> dict[str, str]:
    operation = request["op"]
    if operation == "read":
        pieces.write(file_tree.read(path, request["max_bytes"], follow=True))
    elif operation == "write":
        file_tree.write(path, incoming.read(), executable=request["executable"], follow=True)
    elif operation == "list":
        listed = [(os.fsencode(name).hex(), kind, size) for name, kind, size in file_tree.list_folder(path)]
        for at in range(0, len(listed), ENTRIES_A_FRAME):
            pieces.frame(ENTRIES, json.dumps(listed[at : at + ENTRIES_A_FRAME]).encode())
    elif operation == "upload":
        file_tree.unpack(incoming, path, request["max_bytes"])
    else:
        file_tree.pack(path, cast("IO[bytes]", pieces), request["max_bytes"])
    return {}
