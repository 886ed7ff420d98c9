"""kill -9 of everybody in turn. The names follow the table "Who dies, and what follows" in the package's docstring."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
import redis

from pipeline.embedded import EmbeddedServer, EmbeddedServerError, State, embedded_redis, find_server_binary
from pipeline.embedded.joining import join
from pipeline.embedded.places import DataPlaces
from pipeline.embedded.request import KeeperRequest
from pipeline.embedded.server_config import ServerOptions
from pipeline.folders import make_folder
from pipeline.testing.wait import wait_in_thread
from tests.integration.embedded.conftest import PATIENCE_S, Place, is_running

Connect = Callable[[EmbeddedServer], redis.Redis]
Kill = Callable[[int | None], None]


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """Who reads it lives until the test ends."""
    path = tmp_path / "until-the-test-ends"
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    yield path
    os.close(held)


def guard_of(server: EmbeddedServer) -> int:
    """The server's parent."""
    return int(psutil.Process(server.pid).ppid())


def test_a_killed_user_that_was_alone_leaves_no_server_behind(place: Place) -> None:
    user = place.start_user()
    pid = user.says()["server"]

    user.kill()

    assert place.is_free_within()
    assert not is_running(pid)


def test_a_killed_user_does_not_hurt_another(place: Place, connect: Connect) -> None:
    user = place.start_user()
    user.says()
    with place.hold() as server:
        client = connect(server)
        before = (server.pid, server.keeper_pid)

        user.kill()

        assert client.ping()
        assert (server.pid, server.keeper_pid, server.status.starts) == (*before, 1)


def test_children_of_a_killed_user_keep_no_server_alive(place: Place, fifo: Path, kill: Kill) -> None:
    """Neither a program the user started nor a forked copy of it is a user, though both outlive it."""
    user = place.start_user()
    user.says()
    user.tell(f"spawn {fifo}")
    program = user.says()["child"]
    user.tell(f"fork {fifo}")
    copy = user.says()["child"]

    user.kill()

    assert place.is_free_within()
    for child in (program, copy):
        assert is_running(child)
        kill(child)


def test_a_frozen_user_is_a_user(place: Place) -> None:
    user = place.start_user()
    pid = user.says()["server"]
    user.process.send_signal(signal.SIGSTOP)

    with place.hold() as server:
        assert server.pid == pid
    assert is_running(pid)
    user.kill()

    assert place.is_free_within()


def test_a_killed_server_comes_back_with_everything_it_acknowledged(place: Place, connect: Connect, kill: Kill) -> None:
    with place.hold() as server:
        client = connect(server)
        for round_number in range(1, 4):
            value = client.incr("count")
            kill(server.pid)
            server.wait_for("the server was started again", lambda s, n=round_number: s.starts > n and s.state is State.READY)  # type: ignore[misc]

            assert connect(server).get("count") == str(value).encode()

        assert "SIGKILL" in server.status.reason


def test_a_server_killed_in_a_rewrite_of_its_file_leaves_no_writer_and_no_half_file(place: Place, connect: Connect, kill: Kill) -> None:
    slow_rewrite = ("rdb-key-save-delay", "5000")  # microseconds a key: ten seconds for what follows
    with place.hold(extra=(slow_rewrite,)) as server:
        client = connect(server)
        client.mset({f"key:{n}": "x" * 100 for n in range(2_000)})
        client.bgrewriteaof()
        (rewriter,) = psutil.Process(server.pid).children()
        wait_in_thread(lambda: list(place.data_dir.glob("temp-rewriteaof-*")), "the rewrite has begun its file")

        kill(server.pid)
        server.wait_for("the server was started again", lambda s: s.starts == 2 and s.state is State.READY)

        assert not is_running(rewriter.pid)
        assert list(place.data_dir.rglob("temp-*")) == []
        assert connect(server).dbsize() == 2_000


def test_a_killed_keeper_takes_its_server_along_and_the_user_starts_the_next(place: Place, connect: Connect, kill: Kill) -> None:
    with place.hold() as server:
        connect(server).set("kept", "yes")
        old_keeper, old_server = server.keeper_pid, server.pid

        kill(old_keeper)
        server.wait_for("the next keeper's server is ready", lambda s: s.state is State.READY and server.keeper_pid != old_keeper)

        assert not is_running(old_server)
        assert connect(server).get("kept") == b"yes"


def test_a_killed_guard_takes_its_server_along_and_the_user_starts_the_next_keeper(place: Place, connect: Connect, kill: Kill) -> None:
    with place.hold() as server:
        connect(server).set("kept", "yes")
        old_keeper, old_server = server.keeper_pid, server.pid

        kill(guard_of(server))
        server.wait_for("the next keeper's server is ready", lambda s: s.state is State.READY and server.keeper_pid != old_keeper)

        assert not is_running(old_server)
        assert connect(server).get("kept") == b"yes"


def test_when_keeper_and_guard_are_killed_at_once_no_second_server_starts_beside_the_first(
    place: Place, connect: Connect, kill: Kill
) -> None:
    with place.hold() as server:
        connect(server).set("kept", "yes")
        old_keeper, old_guard, old_server = server.keeper_pid, guard_of(server), server.pid

        kill(old_guard)
        kill(old_keeper)
        server.wait_for("the next keeper's server is ready", lambda s: s.state is State.READY and server.keeper_pid != old_keeper)

        assert not is_running(old_server)
        assert connect(server).get("kept") == b"yes"


def test_when_all_are_killed_at_once_nothing_stays_and_the_data_is_there(place: Place, connect: Connect, kill: Kill) -> None:
    user = place.start_user()
    greeting = user.says()
    user.tell("increment 5")
    values = [user.says()["acknowledged"] for _ in range(5)]
    guard = psutil.Process(greeting["server"]).ppid()

    for pid in (greeting["keeper"], guard, greeting["server"]):
        kill(pid)
    user.kill()

    assert place.is_free_within()
    with place.hold() as server:
        assert connect(server).get("count") == str(values[-1]).encode()


@pytest.mark.slow
def test_users_that_write_while_all_around_them_are_killed_lose_nothing(place: Place, connect: Connect, kill: Kill) -> None:
    """Sixteen kills in an order drawn once; before each the server serves, after all of them the users still write."""
    order = ["server", "keeper", "guard", "keeper and guard"] * 4
    Random(7).shuffle(order)
    with place.hold() as server:
        users = [place.start_user() for _ in range(2)]
        for user in users:
            user.says()
            user.tell("increment 1000000")

        for victim in order:
            keeper, starts = server.keeper_pid, server.status.starts
            pids: dict[str, list[int | None]] = {
                "server": [server.pid],
                "keeper": [keeper],
                "guard": [guard_of(server)],
                "keeper and guard": [guard_of(server), keeper],
            }
            for pid in pids[victim]:
                kill(pid)
            server.wait_for(
                f"a server is ready after the {victim} was killed",
                lambda s, k=keeper, n=starts: s.state is State.READY and (server.keeper_pid != k or s.starts > n),  # type: ignore[misc]
            )
        after = int(connect(server).get("count") or 0)
        for user in users:
            while user.says()["acknowledged"] <= after:
                continue
            user.kill()
        acknowledged = [said["acknowledged"] for user in users for said in user.said_before_its_death()]

        assert int(connect(server).get("count") or 0) >= max(acknowledged, default=after)


def test_a_server_that_is_killed_while_it_starts_is_waited_for(place: Place, connect: Connect, tmp_path: Path) -> None:
    """Unlike one that ends by itself before it ever served, which is given up at once."""
    killed_twice = tmp_path / "killed-twice"
    killed_twice.write_text(
        f"#!/bin/sh\nfor n in 1 2; do [ -e {tmp_path}/$n ] || {{ touch {tmp_path}/$n; kill -9 $$; }}; done\nexec {find_server_binary()} -\n"
    )
    killed_twice.chmod(0o700)

    with place.hold(binary=killed_twice) as server:
        assert connect(server).ping()
        assert server.status.starts == 3


@pytest.mark.slow
def test_where_no_parent_death_signal_exists_the_next_user_ends_a_server_without_keeper_and_guard(
    place: Place, connect: Connect, kill: Kill, tmp_path: Path
) -> None:
    """As on macOS; here the program that the guard starts gives the signal up before it becomes the server."""
    deaf = tmp_path / "deaf-server"
    deaf.write_text(
        f"#!{sys.executable}\nimport ctypes, os, sys\nsys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 0)\n"
        f"os.execv({str(find_server_binary())!r}, ['valkey-server', '-'])\n"
    )
    deaf.chmod(0o700)
    user = place.start_user(ROLLSTREAM_REDIS_SERVER=str(deaf))
    greeting = user.says()
    user.tell("increment 1")
    user.says()
    for pid in (psutil.Process(greeting["server"]).ppid(), greeting["keeper"]):
        kill(pid)
    user.kill()
    assert is_running(greeting["server"])

    with place.hold() as server:
        assert not is_running(greeting["server"])
        assert connect(server).get("count") == b"1"


def test_a_keeper_that_finds_no_user_ends_at_once(place: Place) -> None:
    """As when the user that started it was killed before it listened."""
    places = DataPlaces(make_folder(place.data_dir).resolve())
    request = KeeperRequest(binary=find_server_binary(), run_dir=place.run_dir, options=ServerOptions())

    connection = join(places, request, time.monotonic() + PATIENCE_S)  # without a share of the users' lock

    while connection.link.receive() is not None:
        pass
    connection.link.close()
    assert place.is_free_within()


@pytest.mark.slow
def test_a_second_keeper_for_a_directory_is_refused(place: Place) -> None:
    with place.hold() as server:
        places = DataPlaces(place.data_dir.resolve())
        places.sockets_link.rename(places.data_dir / "hidden")  # so that the newcomer does not find the keeper

        with pytest.raises(EmbeddedServerError, match="is in use by a server that this process cannot reach"):
            embedded_redis(
                place.data_dir, run_dir=place.run_dir.with_name("elsewhere"), options=ServerOptions(stop_grace_s=0.0), start_timeout_s=15.0
            )

        assert server.status.state is State.READY


def test_a_frozen_keeper_is_named_to_who_comes(place: Place) -> None:
    with place.hold() as server:
        os.kill(server.keeper_pid, signal.SIGSTOP)
        try:
            with pytest.raises(EmbeddedServerError, match="does not answer: if it is stopped"):
                embedded_redis(place.data_dir, run_dir=place.run_dir, start_timeout_s=0.3)
        finally:
            os.kill(server.keeper_pid, signal.SIGCONT)
