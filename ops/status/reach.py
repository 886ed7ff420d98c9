"""A connection to Redis within two seconds, or the reason why there is none.

Invariants:
  1. Nothing here waits longer than `PATIENCE_S`: for a name and a connection together, and for a reply. While a look goes on, the server is
     asked for the time beside it: one that stops in the middle costs that much once.
  2. No server is started, and none is kept alive: who looks is no user of the embedded server.
  3. What is said of a failure holds no password.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import quote, urlsplit

import redis

from ops.status.trouble import Trouble, Unreached
from pipeline.embedded import EmbeddedServerError, State, embedded_data_dir
from pipeline.embedded.joining import look_at_keeper
from pipeline.embedded.places import DataPlaces
from pipeline.errors import BrokerError, BrokerMisused, RollstreamError
from pipeline.folders import Folders
from pipeline.logs import redact_text
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings

PATIENCE_S = 0.8
"""Twice of it, and the start of the program, are less than two seconds."""
SIGN_EVERY_S = 0.2
DOCTOR = ("rollstream", "doctor")
WRONG_PASSWORD = ("WRONGPASS", "NOAUTH", "invalid username-password", "invalid password", "Authentication required")
Found = TypeVar("Found")


def settings_of_server(settings: QueueSettings) -> QueueSettings:
    """Those settings, with the address of the embedded server where none is set.

    Raises:
        Unreached: no embedded server runs here, or it cannot serve.
    """
    if settings.redis_url:
        return settings
    data_dir = embedded_data_dir(Folders.from_environment())
    start = ("rollstream", "config", "show", "--origin")
    none = f"ROLLSTREAM_REDIS_URL is not set, and no embedded server runs for {data_dir}"
    if not data_dir.is_dir():
        raise Unreached(unreachable(none, start))
    try:
        seen = look_at_keeper(DataPlaces(data_dir.resolve()), time.monotonic() + PATIENCE_S)
    except (EmbeddedServerError, OSError) as error:
        raise Unreached(unreachable(str(error), DOCTOR)) from error
    if seen is None:
        raise Unreached(unreachable(f"{none}: it lives as long as something uses it", start))
    greeting, status = seen
    if status is not None and status.state is not State.READY:
        why = f"the embedded server is {status.state.value.replace('_', ' ')}" + (f": {status.reason}" if status.reason else "")
        full = "No space left" in why or "disk" in why.lower()
        raise Unreached(Trouble(cause="redis_disk_full" if full else "redis_unreachable", what=why, next=DOCTOR, is_blocking=True))
    return settings.model_copy(update={"redis_url": f"unix://{quote(greeting.socket)}?db=0"})


@asynccontextmanager
async def reached(settings: QueueSettings, *, patience_s: float = PATIENCE_S) -> AsyncIterator[AsyncClient]:
    """A client whose server has just answered. (`TIME`: a server that takes no writes refuses `PING` as well.)

    Raises:
        Unreached
    """
    where, began_s = _where(settings), time.monotonic()
    host = urlsplit(settings.redis_url).hostname if not settings.redis_url.startswith("unix:") else None
    if host and "," not in host and not _is_found(host, patience_s):
        raise Unreached(unreachable(f"the name {host} of {where} is not found", DOCTOR))
    client: AsyncClient | None = None
    try:
        try:
            client = command_client(settings)
            async with asyncio.timeout(max(patience_s / 4, patience_s - (time.monotonic() - began_s))):
                await ask(client, "TIME")
        except (RollstreamError, redis.RedisError, OSError, TimeoutError) as error:
            raise Unreached(of_failure(error, where)) from error
        yield client
    finally:
        if client is not None:
            with contextlib.suppress(redis.RedisError, OSError):
                await client.aclose()


async def while_it_answers(
    client: AsyncClient, look: Callable[[], Awaitable[Found]], settings: QueueSettings, *, patience_s: float = PATIENCE_S
) -> Found:
    """What `look` finds, as long as the server answers somebody.

    Raises:
        Unreached: it stopped answering, or does not answer this user.
    """
    looking = asyncio.ensure_future(look())
    try:
        while True:
            done, _ = await asyncio.wait({looking}, timeout=SIGN_EVERY_S)
            if done:
                return looking.result()
            async with asyncio.timeout(patience_s):
                await ask(client, "TIME")
    except (BrokerError, redis.RedisError, OSError, TimeoutError) as error:
        raise Unreached(of_failure(error, _where(settings))) from error
    finally:
        if not looking.done():
            looking.cancel()
            await asyncio.wait({looking})


def of_failure(error: BaseException, where: str) -> Trouble:
    """The trouble that a failed command shows."""
    text = redact_text(str(error)) or "no reply in time"
    if isinstance(error, FileNotFoundError):
        return unreachable(f"{where}: {text}", ("rollstream", "config", "show", "--origin"))
    if any(word in text for word in WRONG_PASSWORD):
        what = f"{where} refuses user and password: {text}"
        return Trouble(cause="wrong_password", what=what, next=("rollstream", "config", "show", "--origin"), is_blocking=True)
    if isinstance(error, BrokerMisused):
        return Trouble(cause="acl_too_narrow", what=f"{where}: {text}", next=DOCTOR, is_blocking=True)
    return unreachable(f"{where}: {text}", DOCTOR)


def unreachable(what: str, then: tuple[str, ...]) -> Trouble:
    """That Redis gives no answer."""
    return Trouble(cause="redis_unreachable", what=what, next=then, is_blocking=True)


def _where(settings: QueueSettings) -> str:
    return redact_text(settings.redis_url).partition("?")[0]


def _is_found(host: str, patience_s: float) -> bool:
    """Whether a name is found in time. The resolver cannot be interrupted, so a thread waits for it that nobody waits for."""
    answers: list[bool] = []

    def find() -> None:
        try:
            socket.getaddrinfo(host, None)
            answers.append(True)
        except OSError:
            answers.append(False)

    thread = threading.Thread(target=find, name="resolver", daemon=True)
    thread.start()
    thread.join(patience_s)
    return bool(answers and answers[0])
