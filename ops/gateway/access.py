"""Who may do what: roles, the files with their tokens, and what is never taken from a web page.

Invariants
    - A token is compared whole, in constant time, against every known one; which of them it was is told by nothing but the role.
    - A file is read again when it has changed, so tokens are changed without a restart. One that cannot be read any more lets nobody in.
    - Without token files everybody who reaches the gateway may do everything, and what reaches it is this machine. A page in a browser
      here does too, so requests with a foreign `Host` are refused; with a foreign `Origin` they are in any case, since browsers keep
      passwords.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from urllib.parse import urlsplit

from ops.gateway.refusals import Refusal
from ops.gateway.settings import LOOPBACK, GatewaySettings
from ops.token_files import TokenFile, read_tokens, token_in
from pipeline.errors import InvalidRequest


class Access(IntEnum):
    """What a route asks for, and a role has; the higher includes the lower."""

    NOBODY = -1
    """No token that is known."""
    OPEN = 0
    """Asked of nobody: says nothing but that the gateway is up."""
    READ = 1
    """Looks at what there is."""
    OPS = 2
    """Opens and closes, cancels, names model servers."""
    TRAINER = 3
    """Submits and lets go."""


ROLES: Mapping[str, Access] = {"read": Access.READ, "ops": Access.OPS, "trainer": Access.TRAINER}


@dataclass(slots=True, kw_only=True)
class RoleFile(TokenFile):
    """The tokens of one role."""

    access: Access


@dataclass(slots=True)
class Guard:
    """Says what a request may do."""

    files: list[RoleFile] = field(default_factory=list)
    pages_may_reach_it: bool = True
    """Whether a browser could: not a Unix socket."""

    @classmethod
    def of(cls, settings: GatewaySettings) -> Guard:
        """The guard of a gateway.

        Raises:
            InvalidRequest: it would listen for others without tokens, or a file with tokens is none.
        """
        files = [RoleFile(path, access=ROLES[role]) for role, path in settings.token_files.items()]
        if not files and not settings.is_private:
            raise InvalidRequest(
                f"whoever reaches {settings.host} could run jobs: give trainer_token_file (and ops_token_file, read_token_file), or "
                "listen on 127.0.0.1 or on a Unix socket (--socket)",
                field="gateway.host",
            )
        seen: dict[bytes, Path] = {}
        for file in files:
            for token in read_tokens(file.path):
                if seen.setdefault(token, file.path) != file.path:
                    raise InvalidRequest(
                        f"{file.path} and {seen[token]} have a token in common: give each role its own", field="token_file"
                    )
        return cls(files, pages_may_reach_it=settings.socket is None)

    def check(self, asked: Access, headers: Mapping[str, str]) -> None:
        """Lets a request pass.

        Raises:
            Refusal: 401 without a known token, 403 with one of a role that may not.
        """
        if self.pages_may_reach_it:
            _refuse_web_pages(headers, needs_own_host=not self.files)
        if not self.files:
            return
        if asked is Access.OPEN:
            return
        token = token_in(headers.get("Authorization", ""))
        if token is None:
            raise Refusal(
                401, "no_token", "expected a token: send it as `Authorization: Bearer TOKEN`, or as the password of basic authentication"
            )
        has = self._access_of(token)
        if has is Access.NOBODY:
            raise Refusal(401, "wrong_token", "this token is in none of the gateway's token files: ask whoever runs it for a current one")
        if has < asked:
            who = next(name for name, access in ROLES.items() if access is has)
            needs = next(name for name, access in ROLES.items() if access is asked)
            raise Refusal(403, "wrong_role", f"a token of the role {who!r} may not do this: it takes one of {needs!r}")

    def _access_of(self, token: bytes) -> Access:
        has = Access.NOBODY
        for file in self.files:
            if file.knows(token):
                has = max(has, file.access)
        return has


def _refuse_web_pages(headers: Mapping[str, str], *, needs_own_host: bool) -> None:
    """A page that a browser shows can reach what the browser reaches, with the password that it keeps: it cannot leave these headers out
    or bend them."""
    host = _host_of(f"//{headers.get('Host', '')}")
    if needs_own_host and host and host not in LOOPBACK:
        raise Refusal(
            403,
            "foreign_host",
            f"without token files the gateway takes requests for this machine only (Host: 127.0.0.1), got {host[:80]!r}",
        )
    origin = headers.get("Origin")
    is_other = origin is not None and (not host or _place_of(origin) != _place_of(f"//{headers.get('Host', '')}"))
    # of an image or a link browsers send no origin, but where the page is from
    if is_other or headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "foreign_origin", "the gateway takes no request that a web page of another site sent: send it from a program")


def _place_of(url: str) -> str:
    """Host and port: a page that another port of this machine serves is another site."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return "?"


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return "?"


__all__ = ["Access", "Guard"]
