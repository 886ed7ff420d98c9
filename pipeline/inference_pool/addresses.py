"""Addresses of model servers: what may be one. Workers open whatever stands here, and log it, so it is looked at before it is kept."""

from __future__ import annotations

from urllib.parse import urlsplit

MOST_CHARACTERS = 2048
EXPECTED = "expected http://host:port or unix:/path.sock"


def wrong_address(url: object) -> str:
    """Why something is no address of a model server, in a sentence; empty when it is one."""
    if not isinstance(url, str) or len(url) > MOST_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        return f"{EXPECTED}, got {url!r:.80}"
    if url.startswith("unix:"):
        return "" if url.startswith("unix:/") and url != "unix:/" else f"{EXPECTED}, with the whole path, got {url!r:.80}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that are not closed, a port beyond 65535
        is_address = False
    if not is_address:
        return f"{EXPECTED}, got {url.rpartition('@')[2]!r:.80}"
    if "@" in parts.netloc:
        return f"{EXPECTED} without user and password, which logs would show: keys of servers are in worker.model_key_file"
    if parts.query or parts.fragment:
        return f"{EXPECTED}, without what follows ? or #, got {url!r:.80}"
    return ""


__all__ = ["wrong_address"]
