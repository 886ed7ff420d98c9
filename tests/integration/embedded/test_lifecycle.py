"""Coming and going: one server however many users, and none without."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis

from pipeline.embedded import EmbeddedServer, EmbeddedServerError, State, embedded_redis, open_redis
from tests.integration.embedded.conftest import Place, is_running

Connect = Callable[[EmbeddedServer], redis.Redis]


def test_a_server_answers_keeps_its_data_and_ends_with_its_last_user(place: Place, connect: Connect) -> None:
    with place.hold() as server:
        first_pid = server.pid
        connect(server).set("kept", "yes")

    assert not is_running(first_pid)
    with place.hold() as server:
        assert server.pid != first_pid
        assert connect(server).get("kept") == b"yes"


def test_a_closed_hold_leaves_the_directory_free_to_be_removed_or_used_at_once(place: Place) -> None:
    place.hold().close()

    assert place.is_free_within(0.0)


def test_two_holds_share_a_server_and_the_first_to_go_does_not_end_it(place: Place, connect: Connect) -> None:
    first = place.hold()
    with place.hold() as second:
        assert (second.pid, second.url) == (first.pid, first.url)

        first.close()

        assert connect(second).ping()
        assert second.status.starts == 1


@pytest.mark.slow
def test_users_that_start_at_the_same_moment_get_one_server(place: Place) -> None:
    users = [place.start_user() for _ in range(8)]

    greetings = [user.says() for user in users]

    assert len({greeting["server"] for greeting in greetings}) == 1
    assert len({greeting["keeper"] for greeting in greetings}) == 1


def test_the_url_stays_the_same_over_the_life_of_the_data(place: Place) -> None:
    with place.hold() as server:
        url = server.url
    with place.hold() as server:
        assert server.url == url


def test_a_copied_data_directory_gets_sockets_of_its_own(place: Place, connect: Connect) -> None:
    with place.hold() as server:
        connect(server).set("origin", "first")
    copy = Place(place.data_dir.with_name("copy"), place.run_dir)
    shutil.copytree(place.data_dir, copy.data_dir, symlinks=True)

    with place.hold() as server, copy.hold() as other:
        assert other.url != server.url
        connect(other).set("origin", "second")
        assert connect(server).get("origin") == b"first"


def test_only_the_owner_reaches_the_server_and_nobody_over_tcp(place: Place, connect: Connect) -> None:
    with place.hold() as server:
        socket_mode = server.socket_path.stat().st_mode
        folder_mode = server.socket_path.parent.stat().st_mode
        data_mode = place.data_dir.stat().st_mode
        connections = psutil.Process(server.pid).net_connections(kind="inet")
        files = [path for path in place.data_dir.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]

    assert stat.S_IMODE(socket_mode) == 0o700
    assert stat.S_IMODE(folder_mode) == 0o700
    assert stat.S_IMODE(data_mode) == 0o700
    assert connections == []
    assert files == []


def test_the_server_runs_with_what_a_queue_needs(place: Place, connect: Connect) -> None:
    with place.hold(maxmemory_bytes=64 << 20, extra=(("slowlog-max-len", "77"),)) as server:
        client = connect(server)
        config = client.config_get("*")

    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "always"
    assert config["maxmemory-policy"] == "noeviction"
    assert config["maxmemory"] == str(64 << 20)
    assert config["save"] == ""
    assert config["port"] == "0"
    assert config["dir"] == str(place.data_dir.resolve())
    assert config["proto-max-bulk-len"] == str(512 << 20)
    assert config["slowlog-max-len"] == "77"


def test_memory_is_bounded_by_default(place: Place, connect: Connect) -> None:
    with place.hold() as server:
        bound = int(connect(server).config_get("maxmemory")["maxmemory"] or 0)

        assert 0 < bound == server.maxmemory_bytes <= 4 << 30


def test_who_asks_for_more_safety_than_the_running_server_has_is_refused(place: Place) -> None:
    with place.hold(appendfsync="everysec") as server:
        with pytest.raises(EmbeddedServerError, match="runs with appendfsync everysec, asked for was always"):
            place.hold(appendfsync="always")

        assert server.status.state is State.READY


@pytest.mark.slow
def test_logs_of_earlier_starts_are_kept_up_to_three(place: Place) -> None:
    for _ in range(5):
        place.hold().close()

    logs = sorted(path.name for path in place.data_dir.glob("server.log*"))

    assert logs == ["server.log", "server.log.1", "server.log.2", "server.log.3"]
    assert "Ready to accept connections" in (place.data_dir / "server.log").read_text()


def test_unfinished_files_of_a_killed_rewrite_are_removed_at_the_next_start(place: Place) -> None:
    place.hold().close()
    leftover = place.data_dir / "appendonlydir" / "temp-rewriteaof-bg-4711.aof"
    leftover.write_bytes(b"half")

    with place.hold():
        assert not leftover.exists()


def test_nothing_is_embedded_where_a_url_is_set(place: Place, tmp_path: Path) -> None:
    environ = {"ROLLSTREAM_REDIS_URL": "redis://example.invalid:6379/0", "ROLLSTREAM_DATA_DIR": str(tmp_path)}

    with pytest.raises(EmbeddedServerError, match="ROLLSTREAM_REDIS_URL is set"):
        embedded_redis(place.data_dir, environ=environ)
    with open_redis(environ=environ) as address:
        assert address.url == "redis://example.invalid:6379/0"

    assert not place.data_dir.exists()
    assert list(tmp_path.iterdir()) == []


def test_open_redis_embeds_where_no_url_is_set(place: Place) -> None:
    environ = {"ROLLSTREAM_DATA_DIR": str(place.data_dir.parent), "ROLLSTREAM_RUN_DIR": str(place.run_dir), "HOME": "/nonexistent"}

    with open_redis(environ=environ) as address, redis.Redis.from_url(address.url) as client:
        assert client.ping()

    assert (place.data_dir.parent / "redis" / "appendonlydir").is_dir()


def test_a_directory_without_data_is_not_made_when_only_a_look_was_wanted(place: Place) -> None:
    with pytest.raises(EmbeddedServerError, match="there is no data in"):
        embedded_redis(place.data_dir, run_dir=place.run_dir, create=False)

    assert not place.data_dir.exists()
