"""Nodes of a benchmark: `rollstream node run`, each in a network namespace and in folders of its own, and the Redis that they reach by TCP.

Where no namespaces can be made the nodes share this host's network, and reach Redis by its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ops.bench.nodes_network import NodeNetwork, NoNamespaces
from ops.bench.nodes_task import ACCOUNT, Sleep, install, read_accounts
from ops.bench.servers import bench_server, bench_server_kind
from ops.child_processes import Child, ChildProcesses
from ops.node.reading import read_node
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings

START_S, END_S = 180.0, 45.0
PORT = 6379
"""On an address that nobody else has."""


@dataclass(slots=True)
class Node:
    """A node that runs."""

    number: int
    folder: Path
    launcher: Child

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def account(self) -> Path:
        return self.folder / "account"

    def kill(self) -> None:
        """SIGKILL to all of it, as when the machine is gone: nobody hands back, and nobody is started again."""
        launcher = self.launcher.process
        launcher.send_signal(signal.SIGSTOP)
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(launcher.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        launcher.kill()
        launcher.wait()


@dataclass(slots=True)
class Fleet:
    """The nodes, and how they are started."""

    folder: Path
    queue: QueueSettings
    client: AsyncClient
    network: NodeNetwork | None
    children: ChildProcesses
    sizes: Sequence[str]
    nodes: list[Node] = field(default_factory=list)

    async def start(self, *numbers: int) -> None:
        """Starts nodes and waits until they are up.

        Raises:
            ChildEnded: one ended.
        """
        started = [self._start(number) for number in numbers]
        async with asyncio.timeout(START_S):
            for node in started:
                while (view := await read_node(self.client, self.queue, node.name)) is None or view.state != "up":
                    self.children.check()
                    await asyncio.sleep(0.2)

    def _start(self, number: int) -> Node:
        folder = self.folder / f"n{number}"
        folder.mkdir()
        own = {f"ROLLSTREAM_{name.upper()}_DIR": str(folder / name) for name in ("run", "data", "scratch", "state")}
        command = [sys.executable, "-m", "ops.cli", "node", "run", "--node", f"n{number}", *self.sizes]
        launcher = self.children.start_command(
            f"n{number}",
            command if self.network is None else self.network.command_on(number, command),
            environment={**own, ACCOUNT: str(folder / "account")},
            cwd=folder,
        )
        self.nodes.append(Node(number, folder, launcher))
        return self.nodes[-1]

    def sleeps(self) -> list[Sleep]:
        """All RUN attempts so far, of all nodes."""
        return read_accounts({node.name: node.account for node in self.nodes})


@asynccontextmanager
async def open_fleet(size: int, sizes: Sequence[str], lease_s: float) -> AsyncIterator[Fleet]:
    """A server, a network where there can be one, and no node yet; nothing of it is left.

    Args:
        size: nodes that there may be.
        sizes: options of `rollstream node run` that each gets.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rsb", dir="/tmp")))
        server = stack.enter_context(bench_server(bench_server_kind(), "everysec"))
        network: NodeNetwork | None = None
        with contextlib.suppress(NoNamespaces):
            network = stack.enter_context(NodeNetwork(size))
        queue = QueueSettings(redis_url=server.url, lease_s=lease_s)
        if network is not None:
            queue = await _listen(queue, network.here, folder / "password")
        install(folder / "installed")
        environment = {
            **{name: "" for name in os.environ if name.startswith(("ROLLSTREAM_", "SLURM_"))},  # of whoever measures; not of these nodes
            "ROLLSTREAM_REDIS_URL": queue.redis_url,
            "ROLLSTREAM_LEASE_S": str(lease_s),
            "ROLLSTREAM_SANDBOX_BACKEND": "process",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / "installed"), os.environ.get("PYTHONPATH", "")))),
        }
        if queue.redis_password_file is not None:
            environment["ROLLSTREAM_REDIS_PASSWORD_FILE"] = str(queue.redis_password_file)
        client = command_client(queue)
        stack.push_async_callback(client.aclose)
        children = stack.enter_context(ChildProcesses(folder / "logs", environment))
        try:
            yield Fleet(folder, queue, client, network, children, sizes)
        finally:
            await asyncio.to_thread(children.stop_all, grace_s=END_S)


async def _listen(queue: QueueSettings, host: str, password_file: Path) -> QueueSettings:
    """Has a server listen on an address too, for who has a password; how to reach it there."""
    password = _make_password(password_file)
    client = command_client(queue)
    try:
        await ask(client, "CONFIG", "SET", "requirepass", password, "bind", host, "port", PORT)
    finally:
        await client.aclose()
    return QueueSettings(redis_url=f"redis://{host}:{PORT}/0", redis_password_file=password_file, lease_s=queue.lease_s)


def _make_password(file: Path) -> str:
    password = secrets.token_hex(16)
    file.touch(mode=0o600)
    file.write_text(password, encoding="ascii")
    return password


__all__ = ["Fleet", "Node", "open_fleet"]
