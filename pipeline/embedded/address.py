"""Where Redis is: a URL, and a password that is never part of what is printed.

ROLLSTREAM_REDIS_URL             redis://, rediss:// or unix:// URL of a server; set means: use it, embed none
ROLLSTREAM_REDIS_PASSWORD_FILE   a file with the password for that URL and nothing else
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from pipeline.errors import InvalidRequest

_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A server to connect to. `repr` and `url` are fit for logs."""

    url: str
    """Without a password; the user's name stays."""
    password: str | None = field(default=None, repr=False)

    def url_with_password(self) -> str:
        """For a client library that takes nothing but a URL. Never print it."""
        if self.password is None:
            return self.url
        parts = urlsplit(self.url)
        user, _, place = parts.netloc.rpartition("@")
        return _joined(parts, f"{user}:{quote(self.password, safe='')}@{place}", parts.query)


def resolve_redis_url(environ: Mapping[str, str] | None = None) -> RedisAddress | None:
    """The server that the environment names; None when it names none, and an embedded one is to be used.

    Raises:
        InvalidRequest: the URL is none of Redis, the password is given twice, or its file cannot be read.
    """
    env = os.environ if environ is None else environ
    text = env.get("ROLLSTREAM_REDIS_URL", "")
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme not in _SCHEMES or not (parts.hostname or parts.path):
        raise InvalidRequest(
            f"must look like redis://host:port/0, rediss://host:port/0 or unix:///path/to/socket; it has the scheme {parts.scheme!r}",
            field="ROLLSTREAM_REDIS_URL",
        )
    credentials, _, place = parts.netloc.rpartition("@")
    user, colon, inline = credentials.partition(":")
    query = parse_qsl(parts.query, keep_blank_values=True)
    password = unquote(inline) if colon else dict(query).get("password")
    file = env.get("ROLLSTREAM_REDIS_PASSWORD_FILE", "")
    if file:
        if password is not None:
            raise InvalidRequest(
                "names a password, and ROLLSTREAM_REDIS_URL holds one too: keep one of them", field="ROLLSTREAM_REDIS_PASSWORD_FILE"
            )
        password = read_password(Path(file).expanduser(), "ROLLSTREAM_REDIS_PASSWORD_FILE")
    user = user or quote(env.get("ROLLSTREAM_REDIS_USER", ""), safe="")
    kept = urlencode([(name, value) for name, value in query if name != "password"])
    return RedisAddress(url=_joined(parts, f"{user}@{place}" if user else place, kept), password=password)


def _joined(parts: SplitResult, netloc: str, query: str) -> str:
    """The URL in one piece; the standard library's own function drops the slashes of a scheme it does not know."""
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


def read_password(path: Path, setting: str) -> str:
    """The password in a file, without the newline at its end.

    Raises:
        InvalidRequest: the file cannot be read, or holds none.
    """
    try:
        text = path.read_text().rstrip("\r\n")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", field=setting) from error
    if not text or "\n" in text:
        raise InvalidRequest(f"{path} must hold one line, the password", field=setting)
    return text
