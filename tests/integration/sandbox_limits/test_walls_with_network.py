"""The class `isolated+network` on real walls: out through the proxy to what the list names, and to nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from pipeline.errors import InvalidRequest
from tests.contract.sandbox.kinds import WALLED
from tests.integration.sandbox_limits.conftest import OpenProvider, an_owner
from workers.sandbox import Isolation, SandboxStartError
from workers.sandbox.local import LocalSandbox
from workers.sandbox.network.proxy import PORT
from workers.sandbox.service.settings import SandboxSettings

OUTWARD = replace(WALLED, isolation=Isolation.ISOLATED_NETWORK)
THROUGH = """
import os, socket, sys
from urllib.parse import urlsplit
way = urlsplit(os.environ["https_proxy"])
for target in sys.argv[1:]:
    with socket.create_connection((way.hostname, way.port), 20) as client:
        client.sendall(f"CONNECT {target} HTTP/1.1\\r\\n\\r\\n".encode())
        answer = client.recv(4096)
        if b" 200 " in answer:
            client.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        print(answer.split(b"\\r\\n")[0].decode(), answer[-3:].decode().strip())
"""
PAST = f"""
import socket, sys
for host, port in [target.rsplit(":", 1) for target in sys.argv[1:]]:
    for family, kind in [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)]:
        if kind == socket.SOCK_DGRAM and host.startswith("127."):
            continue  # its own loopback takes any datagram
        with socket.socket(family, kind) as client:
            client.settimeout(5)
            try:
                client.connect((host, int(port)))
                client.send(b"x") if kind == socket.SOCK_DGRAM else None
                print("reached", host, port, kind)
            except OSError:
                pass
print("tried", socket.socket().connect_ex(("127.0.0.1", {PORT})))
"""


@dataclass
class Host:
    """A server of the node."""

    port: int = 0
    reached: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi\n")
        await writer.drain()
        writer.close()


@pytest.fixture
async def hosts() -> AsyncIterator[tuple[Host, Host]]:
    """One that tests put on the list, and one that stands for a Redis beside it."""
    both = (Host(), Host())
    servers = [await asyncio.start_server(host.serve, "127.0.0.1", 0) for host in both]
    for host, server in zip(both, servers, strict=True):
        host.port = server.sockets[0].getsockname()[1]
    yield both
    for server in servers:
        server.close()


async def ask(sandbox: LocalSandbox, program: str, *targets: str) -> list[str]:
    result = await sandbox.exec(["python3", "-c", program, *targets], timeout_s=30)
    assert result.returncode == 0, result.stderr_text
    return result.stdout_text.splitlines()


async def test_what_the_list_names_is_reached_and_nothing_else(open_provider: OpenProvider, hosts: tuple[Host, Host]) -> None:
    """The node's own services are on the same machine as the proxy, so nothing but the list is between them and the sandbox."""
    listed, redis = hosts
    provider = await open_provider(network_allow=[f"localhost:{listed.port}", f"127.0.0.1:{listed.port}", f"localhost:{redis.port}"])
    assert Isolation.ISOLATED_NETWORK in (await provider.probe()).isolation
    async with await provider.start(OUTWARD, an_owner()) as sandbox:
        own, metadata = f"127.0.0.1:{redis.port}", "169.254.169.254:80"
        through = await ask(sandbox, THROUGH, f"localhost:{listed.port}", f"localhost:{redis.port}", own, metadata, "pypi.org:443")
        past = await ask(sandbox, PAST, f"127.0.0.1:{listed.port}", own, "192.0.2.1:80", metadata)
        use = await sandbox.use()

        assert [line.split()[1] for line in through] == ["200", "403", "403", "403", "403"]
        assert through[0] == "HTTP/1.1 200 OK hi"
        assert past == ["tried 0"]
        assert (listed.reached, redis.reached) == (1, 0)
        assert use.enforced["network"] == "allow-list proxy"
        assert use.network_refused == 4
        assert use.network_bytes > len(b"GET / HTTP/1.1\r\n\r\n")
        assert [notice.split(":")[0] for notice in use.notices] == 4 * ["network"]

        parked = await sandbox.park()
    async with await provider.attach(parked, replace(an_owner(), job_id=sandbox.folder.record.job_id, attempt=2)) as again:
        assert (await ask(again, THROUGH, f"localhost:{listed.port}")) == through[:1]
    async with await provider.start(WALLED, an_owner()) as neighbour:
        assert (await ask(neighbour, PAST, f"127.0.0.1:{listed.port}"))[0] != "tried 0"
        assert (await neighbour.exec("env | grep -ci _proxy", timeout_s=10)).stdout == b"0\n"


async def test_without_a_list_the_class_is_refused_and_the_setting_named(open_provider: OpenProvider) -> None:
    provider = await open_provider()

    assert Isolation.ISOLATED_NETWORK not in (await provider.probe()).isolation
    with pytest.raises(SandboxStartError, match=r"sandbox\.network_allow \(ROLLSTREAM_SANDBOX_NETWORK_ALLOW"):
        await provider.start(OUTWARD, an_owner())


def test_the_list_is_read_from_the_environment_and_judged_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_SANDBOX_NETWORK_ALLOW", "pypi.org:443,*.pythonhosted.org")
    rules = SandboxSettings.load().network
    assert rules is not None
    assert rules.refuse_name("files.pythonhosted.org", 443) == ""
    assert rules.refuse_name("pypi.org", 80) != ""

    monkeypatch.setenv("ROLLSTREAM_SANDBOX_NETWORK_ALLOW", "https://pypi.org")
    with pytest.raises(InvalidRequest, match=r"'https://pypi\.org'"):
        SandboxSettings.load()
