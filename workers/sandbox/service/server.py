"""The socket of the node service: who may connect, and what each connection is given.

The folder is its user's alone, the token a second lock on the same door: a socket can be passed around, a file of mode 0600 is read by its
user. Connections are bounded, and none of them can do more than end itself.

Whoever tidies up `/tmp` removes sockets that look old: the service looks after its own, and listens anew where it is gone. Connections that
stand do not notice.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from pipeline.folders import FolderError, make_private_folder, socket_path
from workers.sandbox.service.connection import Connection
from workers.sandbox.service.node import NodeSandboxes
from workers.sandbox.service.peer import PATIENCE, Patience
from workers.sandbox.service.wire import Message

SOCKET_NAME, TOKEN_NAME = "sandbox.sock", "sandbox.token"
MAX_CONNECTIONS = 4096
BACKLOG = 1024
LOOK_S = 60.0
"""Between looks whether the socket and the token are still there."""

log = structlog.get_logger(__name__)


class SandboxServer:
    """Serves the sandboxes of a node; an async context manager.

    Args:
        node: the sandboxes.
        run_dir: where the socket and the token lie. No other server may use it (`serving.py` holds its lock).
        told: what a hello says of the backends, beside node and epoch.
        patience: how long it waits for its peers.
        look_s: between looks whether it can still be found.
        max_connections: at once.
    """

    def __init__(
        self,
        node: NodeSandboxes,
        run_dir: Path,
        told: Callable[[], Message],
        *,
        patience: Patience = PATIENCE,
        look_s: float = LOOK_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.node = node
        self.token = secrets.token_hex(32)
        self.socket = socket_path(run_dir, SOCKET_NAME)
        self.connections: set[Connection] = set()
        node.health.watchers.append(self._tell_health)
        self.used = asyncio.Event()
        """Set while somebody is connected."""
        self.unused = asyncio.Event()
        """Set while nobody is."""
        self.unused.set()
        self._token_file = run_dir / TOKEN_NAME
        self._told = told
        self._patience = patience
        self._look_s = look_s
        self._max_connections = max_connections
        self._server: asyncio.Server | None = None
        self._bound_to = (0, 0)
        self._looking: asyncio.Task[None] | None = None

    @property
    def spool_folder(self) -> Path:
        return self.node.provider.scratch_dir

    async def __aenter__(self) -> Self:
        await self._listen()
        self._looking = asyncio.get_running_loop().create_task(self._look_after(), name="look after the socket")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_listening()
        for connection in list(self.connections):
            connection.close()

    async def _listen(self) -> None:
        make_private_folder(self.socket.parent, "ROLLSTREAM_SANDBOX_RUN_DIR")
        write_private(self._token_file, self.token)
        self.socket.unlink(missing_ok=True)  # of a service that was killed
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(self.socket))
            self.socket.chmod(0o600)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Connection(self, self._patience), sock=listening, backlog=BACKLOG)
        except BaseException:
            listening.close()
            raise
        self._bound_to = _identity(self.socket)

    @property
    def can_be_found(self) -> bool:
        """Whether the socket and the token at their paths are ours."""
        try:
            return _identity(self.socket) == self._bound_to and self._token_file.read_text(encoding="ascii") == self.token
        except (OSError, ValueError):
            return False

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if self.can_be_found or self._server is None:
                continue
            log.warning("socket_was_lost", socket=str(self.socket))
            self._server.close()
            try:
                await self._listen()
            except (OSError, FolderError) as error:  # tried again with the next look
                log.error("socket_not_put_back", socket=str(self.socket), error=str(error))

    def stop_listening(self) -> None:
        """Whoever comes now finds nobody, and looks for the next service."""
        if self._looking is not None:
            self._looking.cancel()
        if self._server is not None:
            if self.can_be_found:
                self.socket.unlink(missing_ok=True)
                self._token_file.unlink(missing_ok=True)
            self._server.close()
            self._server = None

    # -- for connections -----------------------------------------------------------------------------------------------------------------

    def hello(self) -> Message:
        return {"node": self.node.node, "epoch": self.node.epoch, "degraded": self.node.health.degraded, **self._told()}

    def admit(self, connection: Connection) -> str:
        if len(self.connections) >= self._max_connections:
            return f"{self._max_connections:,} connections are open already"
        self.connections.add(connection)
        self.used.set()
        self.unused.clear()
        return ""

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.used.clear()
            self.unused.set()

    def _tell_health(self, why: str) -> None:
        for connection in self.connections:
            connection.tell_health(why)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner reads, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_text(text, encoding="ascii")
    draft.replace(path)


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
