"""Files with the tokens of a listener, and the token that a request brings."""

from __future__ import annotations

import base64
import binascii
import hmac
import stat
from dataclasses import dataclass
from pathlib import Path

import structlog

from pipeline.errors import InvalidRequest

log = structlog.get_logger(__name__)

SHORTEST_TOKEN = 16
"""Characters; what is shorter can be guessed over a network."""


@dataclass(slots=True)
class TokenFile:
    """Tokens of whom a listener lets in. The file is read again when it has changed; one that cannot be read lets nobody in."""

    path: Path
    _stamp: tuple[int, int, int] | None = None
    _tokens: tuple[bytes, ...] = ()

    def tokens(self) -> tuple[bytes, ...]:
        """Those that are in the file now; none when it cannot be read."""
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._tokens, self._stamp = read_tokens(self.path), stamp
        except (OSError, InvalidRequest) as error:
            log.error("token_file_unreadable", file=str(self.path), why=str(error))
            self._tokens, self._stamp = (), None
        return self._tokens

    def knows(self, token: bytes) -> bool:
        """Whether it is one of them; each is compared, in constant time."""
        return sum(hmac.compare_digest(known, token) for known in self.tokens()) > 0


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """The tokens of a file, one a line; lines that begin with `#` are notes.

    Raises:
        InvalidRequest: it cannot be read, has none, or one that is too short.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        others = path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}", field="token_file") from None
    tokens = tuple(line.strip().encode() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not tokens:
        raise InvalidRequest(f"expected a token a line in {path}, found none", field="token_file")
    if any(len(token) < SHORTEST_TOKEN for token in tokens):
        raise InvalidRequest(f"expected tokens of at least {SHORTEST_TOKEN} characters in {path}: openssl rand -hex 32", field="token_file")
    if others:
        log.warning("token_file_open_to_others", file=str(path), do=f"chmod 600 {path}")
    return tokens


def token_in(authorization: str) -> bytes | None:
    """The token in a header; None = there is none."""
    scheme, _, rest = authorization.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return rest.encode("utf-8", "surrogateescape")
    if scheme.lower() == "basic":
        try:
            _, colon, password = base64.b64decode(rest, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        return password.strip() if colon and password.strip() else None
    return None
