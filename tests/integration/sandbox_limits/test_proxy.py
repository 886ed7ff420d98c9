"""The allow-list proxy over a real socket, with a real host behind it on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from pipeline.testing.wait import wait_until
from workers.sandbox.network import AllowListProxy, NetworkRules
from workers.sandbox.network.proxy import MOST_CONNECTIONS, MOST_TOLD, resolve
from workers.sandbox.network.rules import Address


@dataclass
class Host:
    """An HTTP host that answers with what it was asked, and remembers it."""

    port: int = 0
    asked: list[bytes] = field(default_factory=list)
    body: bytes = b"hello\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(self.body) + self.body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    yield host
    server.close()


Ask = Callable[..., Awaitable[bytes]]


@dataclass
class Way:
    """A proxy and a client of it."""

    proxy: AllowListProxy
    port: int
    refused: list[str]

    async def ask(self, head: bytes, then: bytes = b"") -> bytes:
        """Sends a head; after the proxy's answer to a CONNECT sends the rest. All that came back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head)
        answer = b""
        if then:
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.write(then)
        answer += await reader.read()
        writer.close()
        return answer


MakeWay = Callable[..., Awaitable[Way]]


@pytest.fixture
async def make_way() -> AsyncIterator[MakeWay]:
    made: list[AllowListProxy] = []

    async def make(*patterns: str, leads_to: str = "127.0.0.1") -> Way:
        async def resolve(name: str, port: int) -> list[Address]:
            if name.endswith(".test"):
                return [ipaddress.ip_address(leads_to)]
            raise OSError("no such name")

        refused: list[str] = []
        proxy = AllowListProxy(NetworkRules.parse(patterns), sandbox_id="s", on_refused=refused.append, resolve=resolve)
        made.append(proxy)
        listener = socket.create_server(("127.0.0.1", 0))
        await proxy.serve(listener)
        return Way(proxy, listener.getsockname()[1], refused)

    yield make
    for proxy in made:
        await proxy.close()


async def test_a_request_reaches_an_allowed_host_by_its_name(host: Host, make_way: MakeWay) -> None:
    way = await make_way(f"some.test:{host.port}", f"127.0.0.1:{host.port}")

    answer = await way.ask(f"GET http://some.test:{host.port}/a?b HTTP/1.1\r\nHost: other\r\n\r\n".encode())

    assert answer.endswith(b"hello\n")
    assert host.asked == [f"GET /a?b HTTP/1.1\r\nHost: some.test:{host.port}\r\nConnection: close\r\n\r\n".encode()]


async def test_a_tunnel_carries_bytes_both_ways_and_they_are_counted(host: Host, make_way: MakeWay) -> None:
    way = await make_way(f"*.test:{host.port}", "127.0.0.0/8", f"127.0.0.1:{host.port}")
    inner = b"GET /inner HTTP/1.1\r\n\r\n"

    answer = await way.ask(f"CONNECT deep.some.test:{host.port} HTTP/1.1\r\n\r\n".encode(), inner)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"hello\n")
    assert host.asked == [inner]
    assert (way.proxy.sent_bytes, way.proxy.received_bytes > len(host.body)) == (len(inner), True)


async def test_a_long_answer_arrives_whole_although_the_host_closes_at_once(host: Host, make_way: MakeWay) -> None:
    """What is still in the proxy's own buffer when the host has ended must go out before the connection is closed."""
    way = await make_way(f"some.test:{host.port}", f"127.0.0.1:{host.port}")
    host.body = bytes(range(256)) * 40_000

    answer = await way.ask(f"GET http://some.test:{host.port}/ HTTP/1.1\r\n\r\n".encode())

    assert answer.endswith(host.body)


async def test_what_is_not_on_the_list_is_refused_told_once_and_not_reached(host: Host, make_way: MakeWay) -> None:
    way = await make_way(f"some.test:{host.port}")
    head = f"CONNECT other.test:{host.port} HTTP/1.1\r\n\r\n".encode()

    answers = [await way.ask(head), await way.ask(head)]

    assert all(answer.startswith(b"HTTP/1.1 403 ") and b"other.test" in answer for answer in answers)
    assert len(way.refused) == 1
    assert host.asked == []


@pytest.mark.parametrize("name", ["a" * 64, "", "a."])
async def test_a_name_below_an_allowed_one_that_cannot_be_is_answered(name: str) -> None:
    """Such a name ended the connection without an answer: the resolver of the standard library raises no OSError then."""
    with pytest.raises(OSError, match="label"):
        await resolve(f"{name}.some.test", 443)


async def test_refusals_are_counted_and_only_so_many_told(make_way: MakeWay) -> None:
    """A guest that asks for another name each time would fill the log of the node."""
    way = await make_way("some.test")

    with capture_logs() as told:
        for number in range(MOST_TOLD + 5):
            await way.ask(f"CONNECT host{number}.test:443 HTTP/1.1\r\n\r\n".encode())

    assert way.proxy.refused == MOST_TOLD + 5
    assert len(way.refused) == MOST_TOLD
    assert sum(line["event"] == "sandbox_network_refused" for line in told) == MOST_TOLD


@pytest.mark.parametrize("leads_to", ["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.8", "169.254.169.254"])
async def test_an_allowed_name_that_leads_into_the_node_is_refused(host: Host, make_way: MakeWay, leads_to: str) -> None:
    """Whoever owns a listed name may point it at 127.0.0.1, where our Redis could be."""
    way = await make_way(f"some.test:{host.port}", leads_to=leads_to)

    answer = await way.ask(f"CONNECT some.test:{host.port} HTTP/1.1\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"public internet" in answer
    assert host.asked == []


async def test_the_nodes_own_addresses_are_refused_by_number(host: Host, make_way: MakeWay) -> None:
    way = await make_way(f"*.test:{host.port}")

    for address in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "localhost"):
        answer = await way.ask(f"CONNECT {address}:{host.port} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 "), address
    assert host.asked == []


async def test_a_host_that_is_not_there_is_said_to_be_so(make_way: MakeWay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    way = await make_way(f"some.test:{port}", f"127.0.0.1:{port}", "gone.example")

    unreachable = await way.ask(f"CONNECT some.test:{port} HTTP/1.1\r\n\r\n".encode())
    unknown = await way.ask(b"CONNECT gone.example:443 HTTP/1.1\r\n\r\n")

    assert unreachable.startswith(b"HTTP/1.1 502 ")
    assert unknown.startswith(b"HTTP/1.1 502 ")
    assert way.refused == []


HEADS = {
    "a path": b"GET / HTTP/1.1\r\n\r\n",
    "no request": b"nonsense\r\n\r\n",
    "endless": b"A" * 100_000 + b"\r\n\r\n",
    "a name that cannot be": b"CONNECT " + b"a." * 150 + b"test:443 HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
async def test_what_is_no_request_gets_an_answer_and_the_next_client_is_served(host: Host, make_way: MakeWay, head: bytes) -> None:
    way = await make_way(f"some.test:{host.port}", f"127.0.0.1:{host.port}")

    first = await way.ask(head)
    second = await way.ask(f"GET http://some.test:{host.port}/ HTTP/1.1\r\n\r\n".encode())

    assert first.startswith(b"HTTP/1.1 400 ")
    assert second.endswith(b"hello\n")


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
async def test_more_connections_than_a_sandbox_may_have_cost_the_node_no_descriptor(host: Host, make_way: MakeWay) -> None:
    """All were accepted, and waited with a descriptor each of the process that serves the node's other sandboxes too: some thousand idle
    connections of one guest, and nobody's next sandbox could start."""
    way = await make_way(f"some.test:{host.port}", f"127.0.0.1:{host.port}")
    before = open_descriptors()
    clients = [socket.socket() for _ in range(MOST_CONNECTIONS + 60)]
    for client in clients:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(("127.0.0.1", way.port))
    mine = before + len(clients)

    await wait_until(lambda: open_descriptors() >= mine + MOST_CONNECTIONS, "as many as may be are accepted")
    for _ in range(20):  # turns of the loop in which the others could be accepted
        await asyncio.sleep(0)
    accepted = open_descriptors() - mine
    for client in clients:
        client.close()
    answer = await way.ask(f"GET http://some.test:{host.port}/ HTTP/1.1\r\n\r\n".encode())

    assert accepted == MOST_CONNECTIONS
    assert answer.endswith(b"hello\n")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_the_end_of_the_proxy_is_the_end_of_its_connections(make_way: MakeWay) -> None:
    ended = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    way = await make_way(f"some.test:{port}", f"127.0.0.1:{port}")
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    writer.write(f"CONNECT some.test:{port} HTTP/1.1\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")

    await way.proxy.close()

    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.readexactly(1)
    await ended.wait()
    writer.close()
    silent.close()
