"""Clients of Redis, made the one way a queue can live with.

redis-py's defaults are wrong for a queue: a 5 s socket timeout cuts longer blocking reads, and ten silent retries repeat writes whose
reply was lost. So:

  - commands: scripts only, every one idempotent; retried by `scripts.runner`, which knows that, and never by redis-py;
  - blocking reads: a client of their own with one connection and a socket timeout above the block time; errors go to the loop that reads;
  - leases: a synchronous client, used from a thread, so that a busy event loop cannot starve them.

Each comes in three forms, by `redis_url`: for one server, for the master that Sentinels name, for a Cluster. What a failover looks like to
each is in docs/adr/0029-redis-beyond-one-box.md.

RESP2 is spoken everywhere: one shape of reply on every server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from pipeline.errors import BrokerMisused, BrokerUnreachable, InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_address import Node, RedisServers, SetUp, parse_redis_url
from pipeline.redis_cluster import ClusterRedis, ThreadClusterRedis
from pipeline.redis_confirmed import ConfirmedLink
from pipeline.redis_links import LinkedRedis, LinkPool
from pipeline.redis_sentinel import (
    MasterConnection,
    MasterSSLConnection,
    Sentinels,
    ThreadMasterConnection,
    ThreadMasterSSLConnection,
)
from pipeline.settings import QueueSettings

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
DRIVER = redis.DriverInfo()
"""What connections say of their library. Made once: it looks the version up among all that is installed, 0.3 ms a connection."""
READ_MARGIN_S = 5.0
"""A blocking read may come back this much later than asked (some servers let BLOCK run over) before the connection counts as dead."""
MAX_CONNECTIONS = 64
POOL_TIMEOUT_S = 30.0
"""A task may wait this long for a connection: all of them are in use, each for no longer than a command's timeout."""

AsyncClient = redis.asyncio.Redis
SyncClient = redis.Redis

MISUSE_WORDS = ("WRONGTYPE", "WRONGPASS", "NOPERM", "NOAUTH", "ACL failure in script", "The user executing the script")
OUTAGE_WORDS = (
    *("LOADING", "MISCONF", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY ", "TRYAGAIN"),
    "instance state changed",  # UNBLOCKED: a blocking read when its server becomes a replica
)
OUTAGES = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.AskError,
)
"""The same where redis-py has taken the first word off the text. MASTERDOWN is a ClusterDownError, MOVED an AskError."""


class _FilePassword(CredentialProvider):
    """Reads the password again at each connection, so that it can be changed while workers run."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        secret = self._settings.password
        word = secret.get_secret_value() if secret else ""
        return (self._settings.redis_user, word) if self._settings.redis_user else (word,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _options(settings: QueueSettings) -> dict[str, Any]:
    # Any: redis-py takes its options by name, each of another type
    if not settings.redis_url:
        raise InvalidRequest("no Redis to connect to: set ROLLSTREAM_REDIS_URL or start the embedded server", field="queue.redis_url")
    options: dict[str, Any] = {
        "protocol": 2,
        "decode_responses": False,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "driver_info": DRIVER,
        **_tls(settings),
    }
    if settings.redis_password_file is not None:
        options["credential_provider"] = _FilePassword(settings)
    return options


def _tls(settings: QueueSettings) -> dict[str, str]:
    files = {"ssl_ca_certs": settings.redis_ca_file, "ssl_certfile": settings.redis_cert_file, "ssl_keyfile": settings.redis_key_file}
    return {name: str(file) for name, file in files.items() if file is not None}


def _credentials(settings: QueueSettings, servers: RedisServers) -> dict[str, Any]:
    """Of Sentinels and Clusters, whose URLs redis-py does not read."""
    if settings.redis_password_file is not None:
        return {"credential_provider": _FilePassword(settings)}
    return {"username": servers.user or None, "password": servers.password or None} if servers.user or servers.password else {}


def sentinels_of(settings: QueueSettings) -> Sentinels:
    """The Sentinels that the URL names."""
    servers = parse_redis_url(settings.redis_url)
    return Sentinels(servers.nodes, servers.master, _tls(settings), _credentials(settings, servers))


def _async_client(settings: QueueSettings, *, as_sent: bool = False, **options: Any) -> LinkedRedis | ClusterRedis:
    """The client for how the servers stand together.

    Args:
        as_sent: replies are not parsed by command.
        options: of its pools.
    """

    def over(pool: LinkPool) -> LinkedRedis:
        client = LinkedRedis.from_link_pool(pool)
        if as_sent:
            client.response_callbacks.clear()
        return client

    known = {**_options(settings), "timeout": POOL_TIMEOUT_S, "retry": AsyncRetry(NoBackoff(), 0), **options}
    servers = parse_redis_url(settings.redis_url)
    if servers.set_up is SetUp.SINGLE:
        return over(LinkPool.from_url(settings.redis_url, **known))
    credentials = _credentials(settings, servers)
    if servers.set_up is SetUp.SENTINEL:
        return over(
            LinkPool(
                connection_class=MasterSSLConnection if servers.tls else MasterConnection,
                sentinels=sentinels_of(settings),
                db=servers.db,
                **{**known, **credentials},
            )
        )
    connection_class = redis.asyncio.SSLConnection if servers.tls else redis.asyncio.Connection

    def of_node(node: Node) -> LinkedRedis:
        return over(LinkPool(connection_class=connection_class, host=node[0], port=node[1], **{**known, **credentials}))

    return ClusterRedis(servers.nodes, of_node, home=Keys.of_shard(settings.namespace, 0).meta)


def command_client(settings: QueueSettings) -> AsyncClient:
    """A client for scripts and short commands. Tasks beyond its connections wait for one; an error at once would look like an outage.

    Scripts wait for `wait_replicas` (`redis_confirmed.py`).
    """
    confirmed: dict[str, Any] = {"make_link": partial(ConfirmedLink, replicas=settings.wait_replicas)} if settings.wait_replicas else {}
    return _async_client(settings, socket_timeout=COMMAND_TIMEOUT_S, max_connections=MAX_CONNECTIONS, **confirmed)


def reader_client(settings: QueueSettings, *, block_s: float) -> AsyncClient:
    """A client for one loop that reads with BLOCK up to `block_s` seconds. Replies come as the server sends them, lists of bytes."""
    return _async_client(settings, as_sent=True, socket_timeout=block_s + READ_MARGIN_S, max_connections=1)


def thread_client(settings: QueueSettings) -> SyncClient:
    """A synchronous client for one thread."""
    known = {**_options(settings), "socket_timeout": COMMAND_TIMEOUT_S, "max_connections": 1, "retry": Retry(NoBackoff(), 0)}
    servers = parse_redis_url(settings.redis_url)
    if servers.set_up is SetUp.SINGLE:
        return redis.Redis.from_url(settings.redis_url, **known)
    credentials = _credentials(settings, servers)
    if servers.set_up is SetUp.SENTINEL:
        connection_class = ThreadMasterSSLConnection if servers.tls else ThreadMasterConnection
        sentinels = sentinels_of(settings)
        pool = redis.ConnectionPool(connection_class=connection_class, sentinels=sentinels, db=servers.db, **{**known, **credentials})
        return redis.Redis.from_pool(pool)

    def of_node(node: Node) -> SyncClient:
        connection_class = redis.SSLConnection if servers.tls else redis.Connection
        return redis.Redis.from_pool(
            redis.ConnectionPool(connection_class=connection_class, host=node[0], port=node[1], **{**known, **credentials})
        )

    return ThreadClusterRedis(servers.nodes, of_node, home=Keys.of_shard(settings.namespace, 0).meta)


def server_now(settings: QueueSettings) -> Node:
    """Host and port of the server that commands about no key go to now: the master that Sentinels name, the node of shard 0 of a Cluster.

    Raises:
        redis.RedisError, OSError: nobody tells.
    """
    with thread_client(settings) as client:
        if isinstance(client, ThreadClusterRedis):
            return client.home()
        connection: Any = cast(Any, client.connection_pool).get_connection()
        return connection.host, connection.port


async def ask(client: AsyncClient, *words: str | int | float | bytes, **options: bool) -> Any:
    """One command to Redis.

    The reply is Any because its shape belongs to the command: clients for commands parse it as redis-py does, readers leave it as it came.

    Raises:
        BrokerUnreachable: no contact.
        BrokerMisused: a key of another type, no permission.
        redis.ResponseError: any other refusal.
    """
    try:
        return await execute(client, *words, **options)
    except (redis.RedisError, OSError) as error:
        raise broker_error(error) from error


async def redis_now_ms(client: AsyncClient) -> int:
    """The clock that all times in Redis are of."""
    seconds, micros = await ask(client, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def execute(client: AsyncClient, *words: str | int | float | bytes, **options: bool) -> Any:
    """One command, with redis-py's own errors. A cancel of the calling task is never lost in it."""
    with cancel_is_kept():
        return await cast(Any, client).execute_command(*words, **options)


@contextmanager
def cancel_is_kept() -> Iterator[None]:
    """Around calls of redis-py: a cancel of the calling task is never lost in them.

    redis-py sends with `asyncio.wait_for`, which before Python 3.12 forgets a cancel that arrives in the same turn of the loop as its
    result: the task would go on as if nobody had cancelled it.
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > cancels:
            raise asyncio.CancelledError


def broker_error(error: redis.RedisError | OSError) -> BrokerUnreachable | BrokerMisused | redis.RedisError | OSError:
    """Our type for what redis-py raised: an outage that passes, a misuse that does not, or the error as it is."""
    text = str(error)
    if isinstance(error, redis.ResponseError) and not isinstance(error, redis.exceptions.BusyLoadingError):
        if isinstance(error, redis.exceptions.NoPermissionError):
            return BrokerMisused(f"this user may not do that ({text}): connect as one that may")  # the text has lost its NOPERM
        if any(word in text for word in MISUSE_WORDS):
            return BrokerMisused(text)
        if isinstance(error, OUTAGES) or any(word in text for word in OUTAGE_WORDS):
            return BrokerUnreachable(text)
        return error
    if isinstance(error, redis.AuthenticationError):
        return BrokerMisused(text)
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return BrokerUnreachable(f"{type(error).__name__}: {text}")
    return error
