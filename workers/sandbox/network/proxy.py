"""The way out of a sandbox whose network is an allow-list: an HTTP proxy that runs outside and listens inside.

    client inside ── 127.0.0.1:PORT in the sandbox's own network ──> this process ── the node's network ──> allowed host

1. The sandbox's network has nothing but loopback; what it reaches, it reaches through here. Clients find the way by `http_proxy` and kin.
2. A client says where it wants to go (`CONNECT`, or a whole address), the rules judge the name and then the address (`rules.py`).
3. Refusals are answers the client prints, log lines, and notices of the sandbox, for the first hosts. Bytes are counted both ways.
4. When the sandbox ends, its proxy is closed: connections end with it, and the last descriptor of its network.
5. Within TLS nothing is seen, so an allowed host that serves others' content is a way to that content. The list is the operator's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import structlog

from workers.sandbox.network.requests import MOST_HEAD_BYTES, BadRequest, ProxyRequest, read_request
from workers.sandbox.network.rules import Address, NetworkRules, read_address

log = structlog.get_logger(__name__)

PORT = 3128
"""Inside the sandbox, where nobody else listens as it starts."""
HEAD_TIMEOUT_S, CONNECT_TIMEOUT_S = 30.0, 15.0
IDLE_TIMEOUT_S = 300.0
"""Neither side says anything for so long: whoever wanted something has gone."""
CHUNK_BYTES = 64 * 1024
MOST_CONNECTIONS = 128
"""At once, of one sandbox; more wait to be accepted."""
MOST_TOLD = 128
"""Hosts that are named in the log and in notices; what is refused beyond is only counted."""
ACCEPT_AGAIN_S = 1.0
"""After a connection could not be accepted."""

Resolve = Callable[[str, int], Awaitable[list[Address]]]


async def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a name, as this node sees them.

    Raises:
        OSError: it has none.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label is empty, or longer than there can be one
        raise OSError(str(error)) from None
    addresses = [read_address(str(where[0])) for _, _, _, _, where in found]
    return [address for address in dict.fromkeys(addresses) if address is not None]


def proxy_variables(port: int = PORT) -> dict[str, str]:
    """The environment by which programs inside find the proxy. Both spellings: some programs read only one."""
    url, own = f"http://127.0.0.1:{port}", "localhost,127.0.0.1,::1"
    names = ("http_proxy", "https_proxy", "all_proxy")
    return {
        **dict.fromkeys(names, url),
        **{name.upper(): url for name in names},
        "no_proxy": own,
        "NO_PROXY": own,
    }


class Refused(Exception):
    """The rules do not allow it; the text says why."""


class AllowListProxy:
    """The proxy of one sandbox.

    Args:
        rules: where it may go.
        on_refused: hears each refusal once a host, in words.
    """

    def __init__(self, rules: NetworkRules, *, sandbox_id: str, on_refused: Callable[[str], None], resolve: Resolve = resolve) -> None:
        self._rules = rules
        self._sandbox_id = sandbox_id
        self._on_refused = on_refused
        self._resolve = resolve
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MOST_CONNECTIONS)
        self._told: set[tuple[str, int]] = set()
        self.sent_bytes = self.received_bytes = 0
        """From and to the sandbox."""
        self.refused = 0
        """Requests that the rules did not allow."""

    def use(self) -> tuple[int, int]:
        """Bytes both ways, and requests that were refused."""
        return self.sent_bytes + self.received_bytes, self.refused

    async def serve(self, listener: socket.socket) -> None:
        """Begins to serve; the socket is ours from here on."""
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener), name=f"proxy of sandbox {self._sandbox_id}")

    async def close(self) -> None:
        """Ends every connection."""
        tasks = [*self._serving, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _accept(self, listener: socket.socket) -> None:
        """One at a time, and none without a slot: what waits is in the kernel's queue, and costs this process, which serves the whole node,
        no descriptor."""
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:  # it has gone again, or this process has no descriptor left for now
                self._slots.release()
                log.warning("proxy_accepts_nothing", sandbox_id=self._sandbox_id, error=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            except BaseException:
                self._slots.release()
                raise
            task = loop.create_task(self._serve(client), name=f"proxy of sandbox {self._sandbox_id}")
            self._serving.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before it began."""
        self._serving.discard(task)
        self._slots.release()

    async def _serve(self, client: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=MOST_HEAD_BYTES)
        except OSError as error:
            client.close()
            log.debug("proxy_connection_ended", sandbox_id=self._sandbox_id, error=str(error))
            return
        try:
            await self._serve_one(reader, writer)
            await _close(writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.debug("proxy_connection_ended", sandbox_id=self._sandbox_id, error=str(error))
        finally:
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                request = read_request(await reader.readuntil(b"\r\n\r\n"))
        except (BadRequest, asyncio.LimitOverrunError) as error:
            await _answer(writer, "400 Bad Request", str(error))
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                host_reader, host_writer = await self._connect(request)
        except Refused as error:
            self._note_refused(request, str(error))
            await _answer(writer, "403 Forbidden", f"refused by the sandbox's network rules: {error}")
            return
        except (OSError, TimeoutError) as error:
            await _answer(writer, "502 Bad Gateway", f"{request.host}:{request.port} cannot be reached: {str(error) or 'no answer'}")
            return
        try:
            if request.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                host_writer.write(request.forward)
                self.sent_bytes += len(request.forward)
            await self._copy_both(reader, writer, host_reader, host_writer)
            await _close(host_writer)
        finally:
            host_writer.transport.abort()

    async def _connect(self, request: ProxyRequest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the first address that is allowed and answers."""
        if refused := self._rules.refuse_name(request.host, request.port):
            raise Refused(refused)
        literal = read_address(request.host)
        addresses = [literal] if literal else await self._resolve(request.host, request.port)
        refusals = [self._rules.refuse_address(address, request.port, by_name=literal is None) for address in addresses]
        allowed = [address for address, refused in zip(addresses, refusals, strict=True) if not refused]
        if not allowed:
            raise Refused(f"{request.host}: {refusals[0]}" if refusals else f"{request.host} has no address")
        problem: OSError | None = None
        for address in allowed:
            try:
                return await asyncio.open_connection(str(address), request.port, limit=CHUNK_BYTES)
            except OSError as error:
                problem = error
        assert problem is not None
        raise problem

    async def _copy_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host_reader: asyncio.StreamReader,
        host_writer: asyncio.StreamWriter,
    ) -> None:
        """Until both directions have ended, or neither has moved for long."""
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S) as idle, asyncio.TaskGroup() as directions:
                directions.create_task(self._copy(reader, host_writer, idle, is_sent=True))
                directions.create_task(self._copy(host_reader, writer, idle, is_sent=False))
        except* OSError as errors:  # one side has gone: so has what the other wanted of it
            log.debug("proxy_connection_cut", sandbox_id=self._sandbox_id, error=str(errors.exceptions[0]))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, idle: asyncio.Timeout, *, is_sent: bool) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(CHUNK_BYTES):
            idle.reschedule(loop.time() + IDLE_TIMEOUT_S)
            if is_sent:
                self.sent_bytes += len(data)
            else:
                self.received_bytes += len(data)
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.write_eof()

    def _note_refused(self, request: ProxyRequest, why: str) -> None:
        where = (request.host, request.port)
        self.refused += 1
        if where not in self._told and len(self._told) < MOST_TOLD:  # a guest may ask for thousands a second, each by another name
            log.warning("sandbox_network_refused", sandbox_id=self._sandbox_id, host=request.host, port=request.port)
            self._told.add(where)
            self._on_refused(f"network: {why}")


async def _answer(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("ascii") + body)
    await writer.drain()
    writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Lets what was written go out first."""
    writer.close()
    async with asyncio.timeout(IDLE_TIMEOUT_S):
        await writer.wait_closed()
