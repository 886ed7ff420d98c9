"""Where a gateway listens: the socket, and the HTTP server behind it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from aiohttp import web

from ops.gateway.application import GatewayApplication
from ops.gateway.connections import ACCEPT_BACKLOG, Connections
from ops.gateway.http_protocol import HttpProtocol
from ops.gateway.settings import GatewaySettings
from ops.gateway.state import Gateway
from ops.tcp_listener import tcp_socket, url_of
from pipeline.errors import InvalidRequest

CLOSE_S = 0.25
LINGER_S = 1.0
"""What is left of a refused body is read for so long, so that its client comes to read the refusal."""


@contextlib.contextmanager
def bound_socket(settings: GatewaySettings) -> Iterator[socket.socket]:
    """The socket, bound before anything else is done: an address that is taken must not cost the run its other gateway."""
    try:
        listener = _unix_socket(settings.socket) if settings.socket is not None else tcp_socket(settings.host, settings.port)
    except OSError as error:
        where = settings.socket or f"{settings.host}:{settings.port}"
        raise InvalidRequest(
            f"cannot listen on {where}: {error.strerror or error}. Choose another, or port 0", field="gateway.port"
        ) from None
    try:
        yield listener
    finally:
        listener.close()
        if settings.socket is not None:
            settings.socket.unlink(missing_ok=True)


def _unix_socket(path: Path) -> socket.socket:
    """A socket for its owner. One that a dead process left is replaced; one that somebody listens on is not."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            try:
                other.connect(str(path))
            except OSError:
                path.unlink()
            else:
                raise OSError(errno.EADDRINUSE, "another process listens there")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _silent() -> logging.Logger:
    """For what is no HTTP: clients could fill a log with it. What goes wrong in a call is logged where it becomes an answer."""
    logger = logging.getLogger("ops.gateway.http")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


@asynccontextmanager
async def listening(gateway: Gateway, application: GatewayApplication, listener: socket.socket) -> AsyncIterator[str]:
    """Takes connections while the block runs; gives the address."""
    settings = gateway.settings
    runner = web.AppRunner(
        application.app,
        handler_cancellation=True,  # the end of a client's connection ends its call, which then decides what that means to its job
        shutdown_timeout=CLOSE_S,
    )
    await runner.setup()
    assert runner.server is not None
    loop, logger = asyncio.get_running_loop(), _silent()
    protocol = partial(HttpProtocol, runner.server, loop=loop, idle_s=settings.idle_s, linger_s=LINGER_S, logger=logger)
    gateway.connections = Connections(protocol, most=settings.max_connections, head_s=settings.head_s)
    if settings.socket is not None:
        server = await loop.create_unix_server(gateway.connections, sock=listener, backlog=ACCEPT_BACKLOG)
        url = f"unix:{settings.socket}"
    else:
        server = await loop.create_server(gateway.connections, sock=listener, backlog=ACCEPT_BACKLOG)
        url = url_of(listener)
    try:
        yield url
    finally:
        server.close()
        gateway.connections.abort()
        await runner.cleanup()


__all__ = ["bound_socket", "listening"]
