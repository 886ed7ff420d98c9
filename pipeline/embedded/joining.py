"""How a user finds the keeper of a data directory, or starts one.

N users that come at once start one keeper: each looks for it, then takes `start.lock`, looks again, and only then starts it. Who holds the
lock waits for the keeper to listen, so the next one finds it. A holder that is killed frees the lock.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pipeline
from pipeline.embedded.control import Greeting, ServerStatus
from pipeline.embedded.errors import EmbeddedServerError
from pipeline.embedded.lines import JsonObject, LineSocket
from pipeline.embedded.locks import FileLock, Mode
from pipeline.embedded.places import DataPlaces
from pipeline.embedded.request import KeeperRequest

_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Of the starter's environment. The keeper outlives who started it, so it must not carry that process's keys and tokens along."""


class Connection:
    """A greeted connection to a living keeper."""

    def __init__(self, link: LineSocket, greeting: Greeting, more: list[JsonObject]) -> None:
        self.link = link
        self.greeting = greeting
        self.more = more
        """What came together with the greeting."""


def join(places: DataPlaces, request: KeeperRequest, deadline: float) -> Connection:
    """Connects to the keeper, starting one if there is none. The caller holds the users' lock, so what it finds does not end meanwhile.

    Args:
        places: the data directory.
        request: how a keeper is to be started, if need be.
        deadline: on the monotonic clock.

    Raises:
        EmbeddedServerError: the keeper could not start, or nothing came of it in time.
    """
    while True:
        connection = _connect(places, deadline)
        if connection is not None:
            return connection
        with FileLock(places.start_lock) as start:
            if not start.lock_within(Mode.EXCLUSIVE, deadline - time.monotonic()):
                raise EmbeddedServerError(f"{start.path} is held by a process that does not finish starting the keeper: end that process")
            connection = _connect(places, deadline)
            if connection is not None:
                return connection
            _start_keeper(places, request, deadline)


def look_at_keeper(places: DataPlaces, deadline: float) -> tuple[Greeting, ServerStatus | None] | None:
    """What a living keeper says of its server, to one who is no user of it and starts nothing; None when no keeper lives.

    Raises:
        EmbeddedServerError: it does not answer in time.
    """
    connection = _connect(places, deadline)
    if connection is None:
        return None
    messages = list(connection.more)
    try:
        while not any("status" in message for message in messages):
            received = connection.link.receive() if connection.link.wait_readable(deadline - time.monotonic()) else None
            if received is None:
                break
            messages += received
    finally:
        connection.link.close()
    said = [ServerStatus.from_message(message["status"]) for message in messages if "status" in message]
    return connection.greeting, said[-1] if said else None


def _connect(places: DataPlaces, deadline: float) -> Connection | None:
    """A greeted connection; None when no keeper lives."""
    sockets = places.linked_sockets()
    if sockets is None:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(sockets.control))
    except OSError:
        sock.close()
        return None
    link = LineSocket(sock)
    messages: list[JsonObject] = []
    while not messages:
        if not link.wait_readable(deadline - time.monotonic()):
            link.close()
            raise EmbeddedServerError(
                f"the keeper behind {sockets.control} does not answer: if it is stopped (SIGSTOP), continue or kill it"
            )
        received = link.receive()
        if received is None:  # killed between our connecting and its greeting
            link.close()
            return None
        messages += received
    return Connection(link, Greeting.from_message(messages[0]["hello"]), messages[1:])


def _start_keeper(places: DataPlaces, request: KeeperRequest, deadline: float) -> None:
    """Starts a keeper in a session of its own and waits until it listens."""
    root = Path(pipeline.__file__).parents[1]
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    environment["PYTHONPATH"] = str(root)
    with subprocess.Popen(
        # -P: the folder this happens to be started in must not shadow a module of ours.
        [sys.executable, "-P", "-m", "pipeline.embedded.keeper", str(places.data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write((request.to_json() + "\n").encode())
        process.stdin.close()
        answer = _read_line(process.stdout.fileno(), deadline)
    if answer is None:
        raise EmbeddedServerError(f"the keeper of {places.data_dir} did not come up in time; see {places.keeper_log}")
    if not answer:
        raise EmbeddedServerError(f"the keeper of {places.data_dir} ended while it started; see {places.keeper_log}")
    message: JsonObject = json.loads(answer)
    if "error" in message:
        raise EmbeddedServerError(str(message["error"]))


def _read_line(fd: int, deadline: float) -> bytes | None:
    """A line from a pipe; empty at end of file, None when the time is up."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(fd, 65_536)
        if not piece:
            return b""
        data += piece
    return data
