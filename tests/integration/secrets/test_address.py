"""A password that a person put into the address of Redis stays with the process that was given it: its children get a file."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import psutil
import pytest

from ops.node.files import FOLDER
from ops.node.reading import read_node
from pipeline.redis_client import ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, wait_until
from tests.integration.node.conftest import START_S, Machine
from tests.secret_words import a_secret, files_with_secrets, words_in

pytestmark = [pytest.mark.timeout(200), pytest.mark.one_server]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="rsa-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def test_a_password_in_the_address_is_handed_on_by_file_and_told(make_server: Callable[[], PrivateServer], folder: Path) -> None:
    word = a_secret("typed", may_be_in_environments=True)
    server = make_server()
    async with aclosing(command_client(QueueSettings(redis_url=server.url))) as admin:
        await ask(admin, "ACL", "SETUSER", "worker", "on", f">{word}", "~*", "&*", "+@all")
        address = f"unix://worker:{word}@{urlsplit(server.url).path}"
        machine = Machine(folder, QueueSettings(redis_url=address))
        small = ("--init", "0", "--run", "1", "--eval", "0", "--no-supervisor")
        launcher = machine.start(*small, ROLLSTREAM_WORKER_SANDBOXES="false")

        async def is_up() -> bool:
            view = await read_node(admin, QueueSettings(redis_url=server.url), "n1")
            return view is not None and view.state == "up"

        try:
            await wait_until(is_up, "the node is up", timeout_s=START_S)
            children = machine.processes()
            (file,) = (folder / "run" / FOLDER).glob("*.password")

            assert len(children) == 1
            assert [child.pid for child in children if words_in(orjson.dumps(child.environ()))] == []
            assert words_in(orjson.dumps(psutil.Process(launcher.pid).environ())) == {word}  # the look sees what there is
            assert (file.read_text(), file.stat().st_mode & 0o777) == (word + "\n", 0o600)
            assert files_with_secrets(folder, but=(file,)) == []
        finally:
            launcher.send_signal(signal.SIGTERM)
            assert await machine.ended(launcher) == 0

    assert not file.exists()
    assert "password_in_address" in machine.log.read_text()
    log = folder / "scratch/logs/n1/node.log"
    assert [line for line in map(orjson.loads, log.read_bytes().splitlines()) if line["event"] == "password_in_address"] == []
