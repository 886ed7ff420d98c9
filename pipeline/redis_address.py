"""The forms of `redis_url`, taken apart.

    redis://host:port/db            one server; rediss:// with TLS, unix:///path by its socket
    redis+sentinel://h:p,h:p/name/db   the master of that name, as these Sentinels say; rediss+sentinel:// with TLS
    redis+cluster://h:p,h:p         a Cluster that these nodes belong to; rediss+cluster:// with TLS

A user and a password may stand before an `@`, as everywhere; a file keeps the password out of sight.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

REDIS_PORT = 6379
SENTINEL_PORT = 26379
WANTED = (
    "expected redis://host:port/0, rediss://host:port/0, unix:///path, redis+sentinel://host:port,host:port/master/0 or "
    "redis+cluster://host:port,host:port, or nothing for the embedded server"
)

Node = tuple[str, int]
"""Host and port."""


class SetUp(StrEnum):
    """How servers stand together."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    "redis": SetUp.SINGLE,
    "rediss": SetUp.SINGLE,
    "unix": SetUp.SINGLE,
    "redis+sentinel": SetUp.SENTINEL,
    "rediss+sentinel": SetUp.SENTINEL,
    "redis+cluster": SetUp.CLUSTER,
    "rediss+cluster": SetUp.CLUSTER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisServers:
    """What a URL names."""

    set_up: SetUp
    tls: bool
    nodes: tuple[Node, ...] = ()
    """Sentinels, or nodes of a Cluster; one server is left to redis-py, which knows more of its URL."""
    master: str = ""
    """The name that Sentinels know."""
    db: int = 0
    user: str = ""
    password: str = field(default="", repr=False)


def parse_redis_url(url: str) -> RedisServers:
    """Takes a URL apart.

    Raises:
        ValueError: it is none of the forms. What came is not repeated: there may be a password in it.
    """
    parts = urlsplit(url)
    set_up = _SCHEMES.get(parts.scheme)
    if set_up is None or "://" not in url:
        raise ValueError(WANTED)
    credentials, _, places = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    servers = RedisServers(set_up=set_up, tls=parts.scheme.startswith("rediss"), user=unquote(user), password=unquote(password))
    if set_up is SetUp.SINGLE:
        _check_port(parts)
        return servers
    if parts.query or parts.fragment:
        raise ValueError(f"{WANTED}; a {set_up} URL takes no options, settings have them")
    nodes = tuple(_node(place, SENTINEL_PORT if set_up is SetUp.SENTINEL else REDIS_PORT) for place in places.split(","))
    words = [unquote(word) for word in parts.path.split("/") if word]
    if set_up is SetUp.CLUSTER:
        if words not in ([], ["0"]):
            raise ValueError(f"{WANTED}; a Cluster has no database but 0")
        return replace(servers, nodes=nodes)
    master, db = (*words, "0")[:2] if words else ("", "0")
    if not master or len(words) > 2 or not db.isdigit():
        raise ValueError(f"{WANTED}; after the Sentinels comes the name of the master that they watch, then the number of a database")
    return replace(servers, nodes=nodes, master=master, db=int(db))


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who a URL says that we are."""

    url: str
    """Without them."""
    user: str
    password: str = field(repr=False)
    """Empty = none."""


def take_out_credentials(url: str) -> Credentials:
    """User and password of a URL of any of the forms, and the URL without them. Of two, redis-py takes those before the `@`."""
    parts = urlsplit(url)
    before, _, places = parts.netloc.rpartition("@")
    user, _, password = (unquote(word) for word in before.partition(":"))
    query = parse_qsl(parts.query, keep_blank_values=True)
    said = dict(query)
    kept = urlencode([(name, value) for name, value in query if name not in ("username", "password")])
    bare = f"{parts.scheme}://{places}{parts.path}{'?' if kept else ''}{kept}"
    return Credentials(bare, user or said.get("username", ""), password or said.get("password", ""))


def _node(place: str, default_port: int) -> Node:
    """Host and port of `host`, `host:port` or `[v6]:port`."""
    parts = urlsplit(f"//{place}")
    port = _check_port(parts)
    if not parts.hostname:
        raise ValueError(f"{WANTED}; a host is missing")
    return parts.hostname, default_port if port is None else port


def _check_port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise ValueError(f"{WANTED}; the port is no number") from None
