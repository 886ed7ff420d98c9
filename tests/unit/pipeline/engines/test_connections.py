"""Connections to one server: when one is used again, when it goes, and what stands in a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline.engines import Exchange, Retryable
from pipeline.engines.answers import Received
from pipeline.engines.connections import Address, BrokenOff, Closed, Connections, Unreachable
from pipeline.testing.wait import wait_until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
MOST = 1000
LONG_S = 600.0


class Last(bytes):
    """An answer behind which the connection is closed."""


class ByteServer:
    """Answers the requests of each connection with given bytes, in turn; behind the last of them it goes silent.

    Args:
        reads: whether it reads requests before it answers.
    """

    def __init__(self, *answers: bytes, reads: bool = True) -> None:
        self._answers, self._reads = list(answers), reads
        self.requests: list[bytes] = []
        self.taken = self.left = 0
        """Connections that began and ended."""

    @asynccontextmanager
    async def serve(self, path: Path) -> AsyncIterator[str]:
        server = await asyncio.start_unix_server(self._hold, path)
        try:
            yield f"unix:{path}"
        finally:
            server.close()
            await wait_until(lambda: self.taken == self.left, "all connections are gone")
            await server.wait_closed()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        try:
            while self._answers:
                if self._reads:
                    self.requests.append(await _request(reader))
                answer = self._answers.pop(0)
                writer.write(answer)
                if isinstance(answer, Last):
                    break
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.left += 1


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return head + (await reader.readexactly(int(lengths[0])) if lengths else b"")


@asynccontextmanager
async def connected(url: str, *, keepalive_s: float = LONG_S, only_one: bool = False) -> AsyncIterator[Connections]:
    connections = Connections(url, {"authorization": "Bearer a key"}, keepalive_s=keepalive_s, connect_timeout_s=5.0, only_one=only_one)
    try:
        yield connections
    finally:
        await connections.close()


async def ask(connections: Connections, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Received:
    return await connections.exchange("POST" if body is not None else "GET", "/path", {}, headers or {}, body, MOST)


async def test_a_connection_is_used_again(tmp_path: Path) -> None:
    server = ByteServer(OK, OK)
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        answers = [await ask(connections, b"one"), await ask(connections)]

    assert [answer.content for answer in answers] == [b"hi", b"hi"]
    assert (connections.made, server.taken) == (1, 1)


async def test_a_request_says_this_and_no_more(tmp_path: Path) -> None:
    server = ByteServer(OK)
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        await connections.exchange("POST", "/a b", {"mode": "x&y"}, {"x-session-id": "j\u00f6b"}, b"{}", MOST)

    assert server.requests == [
        b"POST /a%20b?mode=x%26y HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\nuser-agent: rollstream\r\n"
        b"authorization: Bearer a key\r\nx-session-id: j\xc3\xb6b\r\ncontent-length: 2\r\n\r\n{}"
    ]


@pytest.mark.parametrize("headers", [{"x": "a\r\ny: b"}, {"x": "a\nb"}, {"x": "\0"}, {"x\r\ny": "b"}])
async def test_a_value_cannot_begin_another_header(tmp_path: Path, headers: dict[str, str]) -> None:
    server = ByteServer(OK)
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        with pytest.raises(ValueError, match="header"):
            await ask(connections, headers=headers)

    assert not server.requests


@pytest.mark.parametrize("answer", [OK + b"more", OK.replace(b"content", b"connection: close\r\ncontent"), OK.replace(b"1.1", b"1.0")])
async def test_a_connection_that_cannot_go_on_is_not_used_again(tmp_path: Path, answer: bytes) -> None:
    """A connection with bytes that nobody asked for would hand one job what another was answered."""
    server = ByteServer(answer, OK)
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        assert [(await ask(connections)).content for _ in range(2)] == [b"hi", b"hi"]
        await wait_until(lambda: server.left >= 1, "the first is closed")

    assert connections.made == 2


async def test_a_connection_is_not_used_again_whose_request_has_not_left(tmp_path: Path) -> None:
    """A server that refuses a long body answers before it has read it: what is left of it would be read as the next request."""
    server = ByteServer(b"HTTP/1.1 413 x\r\ncontent-length: 0\r\n\r\n", reads=False)
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        refused = await connections.exchange("POST", "/", {}, {}, b"x" * 64 * 2**20, MOST)

        assert refused.status == 413
        await wait_until(lambda: server.left == 1, "the connection is closed")


async def test_an_idle_connection_goes_though_nobody_asks_for_one(tmp_path: Path) -> None:
    """Servers close theirs after 5 s; a request that is on its way then is lost, and nobody knows whether it was read."""
    server = ByteServer(OK)
    async with server.serve(tmp_path / "s") as url, connected(url, keepalive_s=0.01) as connections:
        await ask(connections)
        await wait_until(lambda: server.left == 1, "the connection is closed")


async def test_who_is_cancelled_closes_the_connection(tmp_path: Path) -> None:
    """Servers look at connections to see that nobody waits for a generation any more."""
    server = ByteServer(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nbegun", OK)
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        call = asyncio.create_task(ask(connections, b"{}"))
        await wait_until(lambda: server.requests, "the request is there")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await wait_until(lambda: server.left == 1, "the connection is closed")


async def test_all_calls_fail_when_the_connections_are_closed(tmp_path: Path) -> None:
    server = ByteServer(b"", b"")
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        calls = [asyncio.create_task(ask(connections)) for _ in range(2)]
        await wait_until(lambda: len(server.requests) == 2, "both requests are there")
        await connections.close()

        assert [type(error) for error in await asyncio.gather(*calls, return_exceptions=True)] == [Closed, Closed]
        with pytest.raises(Closed):
            await ask(connections)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", Closed),
        (b"HTTP/1.1 200 OK\r\ncontent-le", Closed),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab", BrokenOff),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", BrokenOff),
        (b"nonsense\r\n\r\n", BrokenOff),
    ],
)
async def test_a_connection_that_closes_says_whether_an_answer_had_begun(tmp_path: Path, answer: bytes, error: type[Exception]) -> None:
    server = ByteServer(Last(answer))
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        with pytest.raises(error):
            await ask(connections, b"{}")


async def test_an_answer_may_end_with_its_connection(tmp_path: Path) -> None:
    server = ByteServer(Last(b"HTTP/1.1 200 OK\r\n\r\nall of it"))
    async with server.serve(tmp_path / "s") as url, connected(url) as connections:
        assert (await ask(connections)).content == b"all of it"


async def test_a_look_whose_connection_closed_is_made_again_and_a_call_is_not(tmp_path: Path) -> None:
    """Of a call nobody knows whether it was read: it may be sampled already."""
    server = ByteServer(Last(b""), OK.replace(b"hi", b"{}"), Last(b""))
    async with server.serve(tmp_path / "s") as url, Exchange(url) as http:
        assert await http.get("/look") == {}
        with pytest.raises(Retryable) as closed:
            await http.post("/call", {})

    assert (closed.value.reason, http.breaks, len(server.requests)) == ("closed", 1, 3)


async def test_where_only_one_may_be_nothing_is_sent_over_another(tmp_path: Path) -> None:
    """A server that restarted in between would take for itself what was meant for the one before it."""
    server = ByteServer(OK, OK, Last(OK), OK)
    async with server.serve(tmp_path / "s") as url, connected(url, only_one=True) as connections:
        answers = await asyncio.gather(*(ask(connections) for _ in range(3)))
        for _ in range(2):
            with pytest.raises(Closed):
                await ask(connections, b"a label")

    assert [answer.content for answer in answers] == [b"hi"] * 3
    assert (server.taken, len(server.requests)) == (1, 3)


async def test_where_nobody_listens_nothing_is_connected(tmp_path: Path, unused_tcp_port: int) -> None:
    for url in (f"unix:{tmp_path}/none", f"http://127.0.0.1:{unused_tcp_port}", f"https://127.0.0.1:{unused_tcp_port}"):
        async with connected(url) as connections:
            with pytest.raises(Unreachable):
                await ask(connections)


async def test_a_server_that_speaks_no_tls_is_not_talked_to_in_the_clear(unused_tcp_port: int) -> None:
    heard: list[bytes] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4096))
        writer.write(OK)
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", unused_tcp_port), connected(f"https://127.0.0.1:{unused_tcp_port}") as tls:
        with pytest.raises(Unreachable):
            await ask(tls)

    assert heard
    assert b"a key" not in heard[0]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host", Address("host", 80, False, "", "host", "", "")),
        ("http://HOST:80/", Address("host", 80, False, "", "host", "", "")),
        ("https://host:8000/a b/", Address("host", 8000, True, "", "host:8000", "/a%20b", "")),
        ("http://[::1]:8000", Address("::1", 8000, False, "", "[::1]:8000", "", "")),
        ("http://b\u00fccher", Address("xn--bcher-kva", 80, False, "", "xn--bcher-kva", "", "")),
        ("http://me:a%3Ab@host", Address("host", 80, False, "", "host", "", "Basic bWU6YTpi")),
        ("unix:/a/b.sock", Address("", 0, False, "/a/b.sock", "localhost", "", "")),
        ("unix:///a/b.sock", Address("", 0, False, "/a/b.sock", "localhost", "", "")),
    ],
)
def test_an_address_is_taken_apart(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize("url", ["", "host:8000", "ftp://host", "http://", "http://host:port", "http://host/?a=b", "http://[host"])
async def test_what_is_no_address_is_reached_by_nobody(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://host:port"):
        Address.of(url)

    async with Exchange(url) as http:
        with pytest.raises(Retryable, match="expected http://host:port") as unreachable:
            await http.get("/")

    assert unreachable.value.reason == "unreachable"
