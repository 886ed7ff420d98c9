"""Servers and keys as they are named on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.not_reachable import NotReachable
from ops.tasks.model_server import ask_server, key_in
from pipeline.errors import InvalidRequest
from workers.llm.scripted import ScriptedServer


@pytest.mark.parametrize("url", ["localhost:8000", "8000", "ftp://host", ""])
async def test_what_is_no_address_is_told_with_the_forms_that_are(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"server: expected http://host:port, https://host:port or unix:/path\.sock, got"):
        await ask_server(url, "")


async def test_a_server_is_asked_before_anything_is_begun(tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        await ask_server(server.url, "")

    with pytest.raises(NotReachable, match="is a model served there, and can this machine reach it"):
        await ask_server(f"unix:{tmp_path}/no.sock", "")


def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    """One that was not there ended the command in a traceback."""
    (tmp_path / "key").write_text("secret\n")

    assert (key_in(tmp_path / "key"), key_in(None)) == ("secret", "")
    with pytest.raises(InvalidRequest, match=r"api_key_file: .*no-key: No such file or directory"):
        key_in(tmp_path / "no-key")
