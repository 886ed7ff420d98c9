"""The clients a queue can live with: nothing is sent twice behind our back, long reads are not cut, many tasks share one client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import redis.exceptions

from pipeline.errors import BrokerError, BrokerMisused, BrokerUnreachable, InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_client import COMMAND_TIMEOUT_S, MAX_CONNECTIONS, ask, broker_error, command_client, reader_client, thread_client
from pipeline.scripts import ScriptRunner, ThreadScriptRunner
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from tests.secret_words import a_secret

UNREACHABLE: list[redis.RedisError | OSError] = [
    redis.ConnectionError("gone"),
    redis.TimeoutError("slow"),
    ConnectionResetError("reset"),
    FileNotFoundError("no socket"),
    redis.exceptions.BusyLoadingError("LOADING Redis is loading the dataset in memory"),
    redis.exceptions.ReadOnlyError("READONLY You can't write against a read only replica."),
    redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
    redis.ResponseError("MASTERDOWN Link with MASTER is down"),
    redis.ResponseError("CLUSTERDOWN The cluster is down"),
    redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
    redis.ResponseError("BUSY Redis is busy running a script."),
    redis.ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"),
]
MISUSED: list[redis.RedisError] = [
    redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    redis.exceptions.NoPermissionError("NOPERM this user has no permissions to run the 'xadd' command"),
    redis.exceptions.NoPermissionError("User ops has no permissions to run the 'evalsha' command"),  # as redis-py raises it
    redis.AuthenticationError("WRONGPASS invalid username-password pair"),
    redis.exceptions.AuthenticationError("NOAUTH Authentication required."),
]


@pytest.mark.parametrize("error", UNREACHABLE, ids=str)
def test_an_outage_is_one_that_passes(error: redis.RedisError | OSError) -> None:
    assert isinstance(broker_error(error), BrokerUnreachable)


@pytest.mark.parametrize("error", MISUSED, ids=str)
def test_a_misuse_is_not_tried_again(error: redis.RedisError) -> None:
    assert isinstance(broker_error(error), BrokerMisused)


@pytest.mark.parametrize(
    "error", [redis.ResponseError("NOGROUP No such key"), redis.ResponseError("ERR something"), redis.DataError("None")]
)
def test_what_belongs_to_a_command_is_left_to_who_sent_it(error: redis.RedisError) -> None:
    assert broker_error(error) is error


def test_without_an_address_it_says_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="ROLLSTREAM_REDIS_URL"):
        command_client(QueueSettings())


async def test_a_job_key_of_another_type_is_told_as_misuse_from_a_script(client: redis.asyncio.Redis, keys: Keys) -> None:
    await client.set(keys.key("z:delay"), "x", ex=60)

    with pytest.raises(BrokerMisused, match="WRONGTYPE"):
        await ScriptRunner(client, keys)("promote", 10)


async def test_a_user_who_may_not_run_a_command_of_a_script_is_told_as_misuse(
    make_server: Callable[..., PrivateServer], tmp_path: Path
) -> None:
    """Scripts say it in other words than commands do."""
    server = make_server()
    admin = command_client(QueueSettings(redis_url=server.url))
    word = a_secret("weak")
    await ask(admin, "ACL SETUSER", "weak", "on", f">{word}", "~{rs:*", "+evalsha", "+script|load", "+time", "+hmget", "+client")
    secret = tmp_path / "secret"
    secret.write_text(f"{word}\n")
    weak = command_client(QueueSettings(redis_url=server.url, redis_user="weak", redis_password_file=secret))

    with pytest.raises(BrokerMisused, match=r"no permissions|can't run"):
        await ScriptRunner(weak, Keys("{rs:0}"))("promote", 10)
    secret.write_text(a_secret("wrong"))  # read again at each connection
    await weak.connection_pool.disconnect()
    with pytest.raises(BrokerUnreachable, match="invalid username-password"):
        await ask(weak, "PING")
    secret.write_text(word)  # so a password that is being changed is an outage that passes
    assert await ask(weak, "TIME")
    await weak.aclose()
    await admin.aclose()


async def test_a_lost_reply_of_a_plain_command_is_not_repeated(settings: QueueSettings, redis_server: PrivateServer, keys: Keys) -> None:
    """redis-py's default of ten silent retries adds the entry twice and tells nobody."""
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        await ask(client, "PING")
        proxy.cut_reply(containing=b"XADD")

        with pytest.raises(BrokerUnreachable):
            await ask(client, "XADD", keys.reward, "*", "a", "b")

        assert await ask(client, "XLEN", keys.reward) == 1
        await client.aclose()


async def test_a_lost_reply_of_a_script_is_asked_for_again(settings: QueueSettings, redis_server: PrivateServer, keys: Keys) -> None:
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        scripts = ScriptRunner(client, keys)
        assert await scripts("connect_run", "run1", "n1", 60_000, 1, 0, 60_000) == [b"1"]
        for _ in range(3):
            proxy.cut_reply(containing=b"EVALSHA")

        assert await scripts("connect_run", "run1", "n2", 60_000, 1, 0, 60_000) == [b"2"]

        assert proxy.replies_cut == 3
        await client.aclose()


async def test_after_its_tries_a_script_call_says_that_redis_is_away(
    settings: QueueSettings, redis_server: PrivateServer, keys: Keys
) -> None:
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        proxy.begin_outage()
        with pytest.raises(BrokerUnreachable):
            await ScriptRunner(client, keys)("promote", 10)
        proxy.heal()

        assert await ScriptRunner(client, keys)("admit", 10) == [0]
        await client.aclose()


async def test_many_more_tasks_than_connections_wait_for_one(client: redis.asyncio.Redis, keys: Keys) -> None:
    """A plain pool refuses the task after the last connection at once, which looks like an outage."""
    reads = [ask(client, "BLPOP", keys.key("nothing", number), "0.05") for number in range(MAX_CONNECTIONS * 3)]

    assert await asyncio.gather(*reads) == [None] * len(reads)


async def test_a_cancel_is_never_lost_in_a_command(settings: QueueSettings) -> None:
    """A job was cancelled in the very turn of the loop in which its command had been sent: on Python 3.11 the cancel vanished, and the
    job went on."""
    for turns in range(40):
        client = command_client(settings)
        task = asyncio.create_task(ask(client, "ECHO", "x"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert task.result() == b"x"
        await client.aclose()


@pytest.mark.slow
@pytest.mark.one_server
async def test_a_task_that_is_cancelled_while_it_waits_or_reads_gives_its_connection_back(
    settings: QueueSettings, client: redis.asyncio.Redis, keys: Keys
) -> None:
    """A pool that forgets the connections of cancelled tasks stands still after as many cancels as it has connections."""
    for _ in range(3):
        reads = [asyncio.create_task(ask(client, "BLPOP", keys.key("nothing"), "20")) for _ in range(MAX_CONNECTIONS + 20)]
        await wait_until(lambda: blocked_clients(settings), "every connection waits at the server")
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    assert await asyncio.gather(*[ask(client, "ECHO", str(number)) for number in range(100)]) == [b"%d" % number for number in range(100)]


async def blocked_clients(settings: QueueSettings) -> bool:
    """Whether as many clients as one may have connections wait in a blocking command."""
    with thread_client(settings) as other:
        return bool(other.info("clients")["blocked_clients"] >= MAX_CONNECTIONS)


@pytest.mark.slow
@pytest.mark.one_server
async def test_an_idle_read_longer_than_a_commands_timeout_just_ends(
    settings: QueueSettings, client: redis.asyncio.Redis, keys: Keys
) -> None:
    """redis-py's default socket timeout of 5 s and its retries made BLOCK 7000 hang without an error."""
    block_s = COMMAND_TIMEOUT_S + 1.0
    reader = reader_client(settings, block_s=block_s)
    started = time.monotonic()

    reply = await ask(reader, "XREAD", "BLOCK", int(block_s * 1000), "STREAMS", keys.cancel, "$")

    assert not reply
    assert time.monotonic() - started == pytest.approx(block_s, abs=1.0)
    await reader.aclose()


@pytest.mark.slow
@pytest.mark.one_server
async def test_a_frozen_server_is_an_outage_and_not_a_hang(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server()
    settings = QueueSettings(redis_url=server.url)
    with thread_client(settings) as client:
        client.ping()
        server.freeze()
        try:
            with pytest.raises(BrokerUnreachable):
                await asyncio.to_thread(ThreadScriptRunner(client, Keys("{rs:0}")), "promote", 10)
        finally:
            server.thaw()
        assert await asyncio.to_thread(ThreadScriptRunner(client, Keys("{rs:0}")), "admit", 10) == [0]


async def test_a_restarted_server_serves_the_same_client_with_the_same_data(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(persistence="always")
    client = command_client(QueueSettings(redis_url=server.url))
    keys = Keys("{rs:0}")
    scripts = ScriptRunner(client, keys)
    assert await scripts("connect_run", "run1", "n1", 60_000, 1, 0, 60_000) == [b"1"]

    await asyncio.to_thread(server.restart)

    assert await scripts("connect_run", "run1", "n1", 60_000, 1, 0, 60_000) == [b"1"]
    await asyncio.to_thread(server.kill)
    with pytest.raises(BrokerError):
        await scripts("connect_run", "run1", "n1", 60_000, 1, 0, 60_000)
    await asyncio.to_thread(server.start)

    async def answers() -> bool:
        return bool(await ask(client, "PING"))

    await wait_until(answers, "the server answers")
    await client.aclose()
