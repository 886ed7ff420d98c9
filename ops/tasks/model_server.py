"""A model server that somebody names on a command line: asked before anything is begun, since a job would wait for a missing one."""

from __future__ import annotations

from pathlib import Path

from ops.not_reachable import NotReachable
from pipeline.engines.errors import ModelError
from pipeline.errors import InvalidRequest
from workers.llm.connect import connect_backend

FORMS = ("http://", "https://", "unix:/")


def key_in(file: Path | None) -> str:
    """The key of a server; empty = it wants none.

    Raises:
        InvalidRequest: the file cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8").strip() if file is not None else ""
    except (OSError, UnicodeDecodeError) as broken:
        raise InvalidRequest(f"{file}: {getattr(broken, 'strerror', None) or broken}", field="api_key_file") from broken


async def ask_server(url: str, model: str, *, api_key: str = "") -> None:
    """Asks a server what it can do.

    Raises:
        InvalidRequest: that is no address.
        NotReachable
    """
    if not url.startswith(FORMS):
        raise InvalidRequest(f"expected http://host:port, https://host:port or unix:/path.sock, got {url!r}", field="server")
    try:
        async with connect_backend(url, model=model, api_key=api_key) as backend:
            await backend.probe()
    except ModelError as error:
        raise NotReachable(f"{error}; is a model served there, and can this machine reach it?") from error
