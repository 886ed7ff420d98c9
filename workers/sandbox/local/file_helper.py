"""The process that works on the files of a sandbox with walls, from within its mounts: `python -I -S file_helper.py KEEPER FOLDER`.

1. It joins the user and mount namespaces of the sandbox and nothing else: paths and links mean what they mean inside, no path leads out,
   and nothing inside sees this process.
2. What it needs is loaded before it enters. Afterwards the files on any path are the sandbox's, so nothing is imported (`sys.path` and all
   finders are emptied), no name of a user is looked up (the C library would load the sandbox's modules for that), no locale is read.
3. It has no capability left and may get none.
4. One operation is one connection and one forked process: what hangs or breaks takes only its own operation along, and who closes his end
   ends it.

On descriptor 0 arrive messages of JSON, each with the socket of its operation:
    {"op": "read"|"write"|"list"|"upload"|"download"|..., "path", "max_bytes", "executable"}
On that socket: what is written or uploaded comes as plain bytes to their end. Answers are frames, length (4 bytes, big endian) and kind:
`d` = a piece of content, `a` = JSON, the last: {} or {"entries"} or {"trouble", "detail"} or {"failed"}.

Started below the holder, with which it ends. Standard library only.
"""

from __future__ import annotations

import array
import codecs
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from workers.sandbox import file_tree
    from workers.sandbox.local.holder import entering
else:
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:0] = [_here, os.path.dirname(_here)]
    import file_tree
    from holder import entering

    del sys.path[:2]

CODECS = ("utf-8", "ascii", "iso8859-1", "latin-1", "utf8")
"""All that tar headers and JSON are written in; a codec is found by an import."""
MESSAGE_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024


class Pieces:
    """What is written to it goes out as frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: bytes) -> int:
        for at in range(0, len(data), PIECE_BYTES):
            self.frame(b"d", data[at : at + PIECE_BYTES])
        return len(data)

    def frame(self, kind: bytes, data: bytes) -> None:
        self._connection.sendall(struct.pack(">I", len(data)) + kind + data)


def operate(request: dict[str, Any], folder: Path, connection: socket.socket) -> None:
    """One operation, from its request to its answer."""
    pieces = Pieces(connection)
    incoming = connection.makefile("rb", buffering=PIECE_BYTES)
    answer: dict[str, Any] = {}
    path = folder / os.fsdecode(bytes.fromhex(request["path"]))
    try:
        operation = request["op"]
        if operation == "read":
            pieces.write(file_tree.read(path, request["max_bytes"], follow=True))
        elif operation == "write":
            file_tree.write(path, incoming.read(), executable=request["executable"], follow=True)
        elif operation == "list":
            listed = file_tree.list_folder(path)
            answer["entries"] = [(os.fsencode(name).hex(), kind, size) for name, kind, size in listed]
        elif operation == "upload":
            file_tree.unpack(cast(IO[bytes], incoming), path, request["max_bytes"])
        else:
            file_tree.pack(path, cast(IO[bytes], pieces), request["max_bytes"])
    except file_tree.TreeError as error:
        answer = {"trouble": error.trouble, "detail": error.detail}
    except BrokenPipeError:  # nobody waits for it any more
        return
    except Exception as error:  # noqa: BLE001  # whatever it is, it is said; a traceback would read files by paths that are the sandbox's
        answer = {"failed": repr(error)}
    pieces.frame(b"a", json.dumps(answer).encode())
    while incoming.read(PIECE_BYTES):  # what was refused is taken all the same: closing on it would take the answer away
        pass


def serve(control: socket.socket, folder: Path) -> None:
    """Forks a process for each operation until the control socket ends."""
    while True:
        data, ancillary, _, _ = control.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        numbers = array.array("i")
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers.frombytes(payload[: len(payload) // 4 * 4])
        if not numbers:
            continue
        if os.fork() == 0:
            try:
                control.close()
                operate(json.loads(data), folder, socket.socket(fileno=numbers[0]))
            finally:
                os._exit(0)
        for number in numbers:
            os.close(number)


def main() -> None:
    keeper, folder = int(sys.argv[1]), Path(sys.argv[2])
    control = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    for name in CODECS:
        codecs.lookup(name)
    namespaces = entering.Namespaces(keeper)
    entering.forbid_imports()
    namespaces.join(("mnt",))
    namespaces.join_user()
    namespaces.close()
    entering.drop_privileges()
    control.send(b"ready")
    serve(control, folder)


if __name__ == "__main__":
    main()
