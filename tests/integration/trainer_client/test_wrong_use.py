"""Wrong use of the client gets a sentence that says what to do, at once, and never a hang."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pipeline.errors import BrokerMisused, BrokerUnreachable, InvalidRequest
from pipeline.redis_client import ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing.servers import PrivateServer
from tests.integration.trainer_client.rows import rows
from tests.secret_words import a_secret
from trainer_client import ClientClosed, ClientForked, connect, connect_blocking, connect_reader

pytestmark = pytest.mark.one_server


async def test_a_wrong_password_is_told_at_once(make_server: Callable[[], PrivateServer]) -> None:
    """redis-py calls it an outage, so the client waited a minute for a Redis that was there."""
    url = make_server().url
    client = command_client(QueueSettings(redis_url=url))
    word = a_secret("redis")
    await ask(client, "CONFIG", "SET", "requirepass", word)
    await client.aclose()
    for asked in (url, url.replace("://", "://:wrong@")):
        with pytest.raises(BrokerMisused, match=r"Redis at unix://.* takes neither this user nor password .* give them in its URL"):
            async with connect(asked, run="r"):
                pass
        with pytest.raises(BrokerMisused, match="takes neither this user nor password"):
            async with connect_reader(asked) as reader:
                await reader.fetch(["{rs:0}:b:x"])
    async with connect(url.replace("://", f"://:{word}@"), run="r") as run:
        assert run.incarnation == 1


async def test_no_redis_is_told_with_its_address_and_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable, match=r"no Redis answers at unix://:\*\*\*@.*/nobody .*start it, or name another") as told:
        async with connect(f"unix://:hidden@{tmp_path}/nobody", run="r", patience_s=0.1):
            pass
    assert "hidden" not in str(told.value)


async def test_a_connection_that_was_not_entered_says_how(settings: QueueSettings) -> None:
    with pytest.raises(AttributeError, match="enter it first, `async with"):
        connect(settings, run="r").feed(rows(1))  # type: ignore[attr-defined]  # what is tested
    with pytest.raises(TypeError, match="entered, not awaited"):
        await connect(settings, run="r")  # type: ignore[misc]  # what is tested
    with pytest.raises(TypeError, match="connect_blocking"), connect(settings, run="r"):  # type: ignore[attr-defined]  # what is tested
        pass


async def test_what_cannot_be_fed_or_attached_is_refused_by_name(settings: QueueSettings) -> None:
    async with connect(settings, run="r") as run:
        with pytest.raises(InvalidRequest, match="shuffle_seed: expected a whole number"):
            run.feed(rows(3), shuffle_seed="7")  # type: ignore[arg-type]  # what is tested
        with pytest.raises(InvalidRequest, match="urls: expected at least one address"):
            await run.servers.attach([])
        with pytest.raises(InvalidRequest, match="expected the state of run 'other', got that of run 'r'"):
            async with connect(settings, run="other", resume=run.state_dict()):
                pass
        with pytest.raises(InvalidRequest, match=r"resume: .* pass checkpoint\['rollout'\]"):
            async with connect(settings, run="r", resume={"weights": 1, "rollout": run.state_dict()}):
                pass


def test_a_blocking_client_that_was_closed_says_so(settings: QueueSettings) -> None:
    with connect_blocking(settings, run="r") as run:
        assert run.statistics().accepted == 0
    with pytest.raises(ClientClosed, match="run 'r' is closed"):
        run.statistics()


def test_a_client_in_a_forked_process_says_where_to_connect(settings: QueueSettings) -> None:
    """A data loader forks; its copy of the client waited for ever for a thread that did not come along."""

    def ask_there(told: Connection) -> None:
        try:
            run.statistics()
        except ClientForked as error:
            told.send(str(error))

    with connect_blocking(settings, run="r") as run:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=ask_there, args=(there,))
        child.start()
        there.close()
        try:
            assert here.poll(30), "it waits for ever"
            assert f"made in process {os.getpid()}" in here.recv()
        finally:
            child.kill()
            child.join()
        assert run.statistics().accepted == 0
