"""Servers and the proxy of tests: what kills, restarts and loses replies must do exactly that."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from pipeline.errors import BrokerUnreachable
from pipeline.redis_client import ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, ServerKind, wait_in_thread

PROGRAM = """
import sys
from pathlib import Path
from pipeline.testing import PrivateServer, ServerKind
server = PrivateServer(ServerKind("x", Path(sys.argv[1])))
server.start()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").is_dir() else True


def test_what_was_acknowledged_survives_kill_9_with_the_file_synced_always(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(persistence="always")
    for number in range(3):
        with redis.Redis.from_url(server.url) as client:
            client.rpush("list", number)
        server.restart()

    with redis.Redis.from_url(server.url) as client:
        assert client.lrange("list", 0, -1) == [b"0", b"1", b"2"]


def test_without_persistence_a_kill_forgets_all(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server()
    with redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
    server.restart()

    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0


def test_it_has_the_settings_it_was_given(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(maxmemory_bytes=33 << 20, extra=(("slowlog-max-len", "7"),))
    with redis.Redis.from_url(server.url) as client:
        config = client.config_get("*")

    assert (config["maxmemory"], config["maxmemory-policy"], config["slowlog-max-len"]) == (str(33 << 20), "noeviction", "7")
    assert (config["port"], config["save"]) == ("0", "")


def test_a_server_does_not_outlive_a_killed_test(server_kind: ServerKind) -> None:
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server_kind.binary], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as test:
        assert test.stdout is not None
        pid, folder = test.stdout.readline().split()
        assert alive(int(pid))
        test.send_signal(signal.SIGKILL)
        test.wait()

        wait_in_thread(lambda: not alive(int(pid)), "the server is gone")
        wait_in_thread(lambda: not Path(folder).exists(), "its folder is gone")


def test_a_program_that_does_not_serve_is_told_with_its_log(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
    program.chmod(0o755)

    with pytest.raises(RuntimeError, match="did not serve: no such thing"):
        PrivateServer(ServerKind("broken", program)).start()


def test_a_frozen_server_answers_after_it_was_thawed(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server()
    with redis.Redis.from_url(server.url, socket_timeout=0.1, retry=None) as client:
        server.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.thaw()
    with redis.Redis.from_url(server.url) as client:
        assert client.ping()


def settings_of(proxy: LossyProxy) -> QueueSettings:
    return QueueSettings(redis_url=proxy.url)


@pytest.mark.one_server
async def test_a_cut_reply_is_of_a_command_that_was_done(redis_server: PrivateServer) -> None:
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings_of(proxy))
        trap = proxy.cut_reply(containing=b"SETEX")

        with pytest.raises(BrokerUnreachable):
            await ask(client, "SETEX", "{proxy}:a", 60, "done")

        await trap.sprung()
        assert await ask(client, "GET", "{proxy}:a") == b"done"
        assert proxy.replies_cut == 1
        await client.aclose()


@pytest.mark.one_server
async def test_a_held_reply_comes_when_it_is_let_go_and_stops_no_other(redis_server: PrivateServer) -> None:
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings_of(proxy))
        trap = proxy.hold_reply(containing=b"{proxy}:held")
        held = asyncio.create_task(ask(client, "SETEX", "{proxy}:held", 60, "1"))
        await trap.sprung()

        assert await ask(client, "GET", "{proxy}:held") == b"1"
        assert not held.done()
        trap.release()
        assert await held
        await client.aclose()


@pytest.mark.one_server
async def test_a_trap_waits_for_the_request_that_is_done_when_the_server_does_not_know_the_script_yet(redis_server: PrivateServer) -> None:
    """The first call of a script on a server is answered with NOSCRIPT. That reply was held, and a test went on although nothing had been
    done: which one it was depended on the order of the tests."""
    word = secrets.token_hex(8)
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings_of(proxy))
        trap = proxy.hold_reply(containing=b"{proxy}:scripted")
        source = f"return redis.call('SET', KEYS[1], '{word}', 'EX', 60)"
        script = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

        async def call() -> object:
            return await ask(client, "EVALSHA", script, 1, "{proxy}:scripted")

        with pytest.raises(redis.exceptions.NoScriptError):
            await call()
        await ask(client, "SCRIPT", "LOAD", source)
        held = asyncio.create_task(call())
        await trap.sprung()

        with redis.Redis.from_url(redis_server.url) as other:
            assert other.get("{proxy}:scripted") == word.encode()
        assert not held.done()
        trap.release()
        await held
        await client.aclose()


@pytest.mark.one_server
async def test_an_outage_breaks_and_refuses_until_it_is_healed(redis_server: PrivateServer) -> None:
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings_of(proxy))
        waiting = asyncio.create_task(ask(client, "BLPOP", "{proxy}:nothing", 4))
        while not proxy.replies_passed:
            await ask(client, "PING")
        proxy.begin_outage()
        with pytest.raises(BrokerUnreachable):
            await waiting
        with pytest.raises(BrokerUnreachable):
            await ask(client, "PING")

        proxy.heal()

        assert await ask(client, "PING")
        await client.aclose()


@pytest.mark.slow
@pytest.mark.one_server
async def test_the_share_of_cut_replies_is_the_one_asked_for_and_the_same_for_a_seed(redis_server: PrivateServer) -> None:
    def cut_of_a_thousand(seed: int) -> tuple[int, list[int]]:
        fates = []
        with LossyProxy(redis_server.socket, seed=seed, cut_share=0.1) as proxy:
            for number in range(1000):
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(proxy.socket))
                    client.sendall(b"PING\r\n")
                    if client.recv(16) != b"+PONG\r\n":
                        fates.append(number)
            return proxy.replies_cut, fates

    first, again, other = cut_of_a_thousand(1), cut_of_a_thousand(1), cut_of_a_thousand(2)

    assert first == again != other
    assert first[0] == pytest.approx(100, abs=35)


@pytest.mark.one_server
async def test_a_server_that_is_down_looks_down_through_the_proxy(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(persistence="always")
    with LossyProxy(server.socket) as proxy:
        client = command_client(settings_of(proxy))
        await ask(client, "SET", "a", "1")
        await asyncio.to_thread(server.kill)
        with pytest.raises(BrokerUnreachable):
            await ask(client, "GET", "a")
        await asyncio.to_thread(server.start)

        assert await ask(client, "GET", "a") == b"1"
        await client.aclose()


@pytest.mark.one_server
@pytest.mark.parametrize("is_out", [False, True])
def test_a_proxy_that_is_left_keeps_none_of_those_who_connect_in_that_moment(redis_server: PrivateServer, is_out: bool) -> None:
    """A worker that tries again during an outage connects when it likes. A connection that was accepted or broken in the moment the proxy
    was left stayed behind in a loop that had ended, and the next test that collected garbage failed of it."""
    for _ in range(20):
        left, came = threading.Event(), threading.Event()

        def connect(place: str, left: threading.Event = left, came: threading.Event = came) -> None:
            while not left.is_set():
                with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
                    one.connect(place)
                    came.set()

        with LossyProxy(redis_server.socket) as proxy:
            if is_out:
                proxy.begin_outage()
            who = threading.Thread(target=connect, args=(str(proxy.socket),))
            who.start()
            assert came.wait(10)
        left.set()
        who.join()
    gc.collect()  # whatever was left behind says so here
