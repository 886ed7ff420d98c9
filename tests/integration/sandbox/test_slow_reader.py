"""A cell whose output is not read waits, and one whose reader went away does not.

The reader is the test: it has the kernel's own sockets, and reads when it wants to.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from jupyter_client.session import Session

from workers.sandbox.kernel_connection import BOOT_SCRIPT

LINES = 20_000
LINE = "n" * 4991
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}
FLOOD = f"for n in range({LINES}): print(f'{{n:08}}', {LINE!r}, flush=n % 10 == 0)"
"""A hundred megabytes, many more messages than any buffer on the way holds."""
BLOCKED_MS = 1500
ANSWER_MS = 60_000
KERNEL_MB = 150


class Reader:
    """A kernel and the two sockets to it; nothing is read unless a test asks."""

    def __init__(self, folder: Path) -> None:
        ports = {f"{name}_port": port for name, port in PORTS.items()}
        key = secrets.token_hex(16)
        connection = {"transport": "ipc", "ip": f"{folder}/s", "key": key, "signature_scheme": "hmac-sha256", **ports}
        (folder / "connection.json").write_text(json.dumps(connection))
        argv = [sys.executable, "-I", str(BOOT_SCRIPT), str(folder / "connection.json"), "1"]
        self.process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert self.process.stdout.read(1) == b"r"
        self.session = Session(key=key.encode())
        self.context = zmq.Context()
        self.shell = self.connect(zmq.DEALER, f"{folder}/s-1")
        self.output = self.connect(zmq.SUB, f"{folder}/s-2")
        self.control = self.connect(zmq.DEALER, f"{folder}/s-4")
        assert self.output.poll(ANSWER_MS)  # the welcome, or nothing would be heard
        self.take(self.output)

    def connect(self, kind: int, path: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, 8)
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"ipc://{path}")
        return socket

    def run(self, code: str) -> None:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        self.shell.send_multipart(self.session.serialize(self.session.msg("execute_request", content)))

    def take(self, socket: zmq.Socket[bytes]) -> dict[str, object]:
        assert socket.poll(ANSWER_MS), "nothing came"
        _, frames = self.session.feed_identities(socket.recv_multipart())
        message: dict[str, object] = self.session.deserialize(frames)
        return message

    def shown(self) -> str:
        """Reads what one cell shows, to the word that the kernel is idle."""
        texts: list[str] = []
        while True:
            message = self.take(self.output)
            content = message["content"]
            assert isinstance(content, dict)
            if message["msg_type"] == "stream":
                texts.append(content["text"])
            elif content.get("execution_state") == "idle":
                return "".join(texts)

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def reader() -> Iterator[Reader]:
    folder = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    reader = Reader(folder)
    yield reader
    reader.close()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_cell_waits_for_its_reader_and_every_line_comes(reader: Reader) -> None:
    """A cell that ran ahead of a busy worker lost the end of its output, or filled the memory of its sandbox with it."""
    reader.run(FLOOD)

    assert not reader.shell.poll(BLOCKED_MS), "the cell ended though nobody took its output"
    held_mb = psutil.Process(reader.process.pid).memory_info().rss / 2**20
    lines = reader.shown().splitlines()

    assert held_mb < KERNEL_MB
    assert lines == [f"{n:08} {LINE}" for n in range(LINES)]
    assert reader.take(reader.shell)["msg_type"] == "execute_reply"


@pytest.mark.slow
def test_a_cell_whose_reader_went_away_ends(reader: Reader) -> None:
    """A wait for somebody who never comes back would keep the kernel for ever."""
    reader.run(FLOOD)
    assert not reader.shell.poll(BLOCKED_MS)

    reader.output.close()

    assert reader.take(reader.shell)["msg_type"] == "execute_reply"


@pytest.mark.slow
def test_a_cell_that_waits_for_its_reader_can_be_interrupted(reader: Reader) -> None:
    """At its limit a cell is interrupted, wherever it is."""
    reader.run(FLOOD)
    assert not reader.shell.poll(BLOCKED_MS)

    reader.control.send_multipart(reader.session.serialize(reader.session.msg("interrupt_request", {})))
    assert reader.take(reader.control)["msg_type"] == "interrupt_reply"
    text = reader.shown()

    reply = reader.take(reader.shell)["content"]
    assert isinstance(reply, dict)
    assert reply["ename"] == "KeyboardInterrupt"
    assert 0 < len(text) < LINES * 5001
