"""A disk that fills up is an outage like any other: nothing acknowledged is lost, and when space comes back the server does too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from pipeline.embedded import EmbeddedServer, EmbeddedServerError, State
from tests.integration.embedded.conftest import Place

Connect = Callable[[EmbeddedServer], redis.Redis]
_VALUE = b"x" * 20_000


@dataclass(slots=True)
class SmallDisk:
    """A file system of 8 MiB that holds a data directory, and a file that takes up the rest of it."""

    place: Place
    mount: Path

    def fill(self) -> None:
        """Takes what is left."""
        with (self.mount / "filler").open("ab", buffering=0) as file:
            for size in (65_536, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self) -> None:
        """Gives it back."""
        (self.mount / "filler").unlink()


@pytest.fixture
def disk(place: Place) -> Iterator[SmallDisk]:
    """A real small file system; skipped only where this user may not mount one."""
    if sys.platform != "linux":
        pytest.skip("a small file system is mounted with Linux's tmpfs")
    mount = Path(tempfile.mkdtemp(prefix="rs-disk-", dir="/tmp"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(mount)], capture_output=True, check=False)
    if mounted.returncode != 0:
        mount.rmdir()
        pytest.skip(f"needs permission to mount a tmpfs: {mounted.stderr.decode().strip()}")
    small = Place(mount / "data", place.run_dir)
    try:
        yield SmallDisk(small, mount)
        assert small.is_free_within(), "the server outlived its last user"
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)
        shutil.rmtree(mount)


def write_until_refused(client: redis.Redis, prefix: str) -> tuple[list[str], redis.RedisError]:
    """Writes bodies; answers the keys that were acknowledged, and the error that ended it."""
    acknowledged: list[str] = []
    for number in range(2_000):
        key = f"{prefix}:{number}"
        try:
            client.set(key, _VALUE)
        except redis.RedisError as error:
            return acknowledged, error
        acknowledged.append(key)
    raise AssertionError("8 MiB took 40 MB")


def assert_all_there(client: redis.Redis, keys: list[str]) -> None:
    values = client.mget(keys)
    assert [key for key, value in zip(keys, values, strict=True) if value != _VALUE] == []


def test_with_always_a_full_disk_ends_the_server_again_and_again_until_space_comes_back(disk: SmallDisk, connect: Connect) -> None:
    with disk.place.hold(restart_cap_s=0.2) as server:
        keeper = server.keeper_pid
        connect(server).set("first", _VALUE)
        disk.fill()

        kept = ["first"]
        for round_number in range(3):
            starts = server.wait_for("the server serves", lambda s: s.state is State.READY).starts
            acknowledged, error = write_until_refused(connect(server), f"full-{round_number}")
            assert isinstance(error, redis.ConnectionError)
            kept += acknowledged
            server.wait_for("the keeper started it again", lambda s, n=starts: s.starts > n)  # type: ignore[misc]
        reason = server.wait_for("it says why", lambda s: bool(s.reason)).reason
        assert "is full" in reason
        assert str(disk.place.data_dir.resolve()) in reason

        disk.free()
        server.wait_for("the server serves", lambda s: s.state is State.READY)
        client = connect(server)
        client.set("after", _VALUE)

        assert_all_there(client, [*kept, "after"])
        assert server.keeper_pid == keeper
    with disk.place.hold() as server:
        assert_all_there(connect(server), [*kept, "after"])


def test_with_everysec_a_full_disk_refuses_writes_and_goes_on_when_space_comes_back(disk: SmallDisk, connect: Connect) -> None:
    with disk.place.hold(appendfsync="everysec") as server:
        client = connect(server)
        client.set("first", _VALUE)
        disk.fill()

        _, error = write_until_refused(client, "full")
        assert "MISCONF" in str(error)
        assert client.get("first") == _VALUE

        disk.free()
        while True:  # the server tries its file again about once a second
            try:
                client.set("after", _VALUE)
                break
            except redis.ResponseError as refused:
                assert "MISCONF" in str(refused)  # noqa: PT017
                client.wait(1, 50)  # 50 ms at the server: there is no replica to wait for
        assert server.status.starts == 1
    with disk.place.hold(appendfsync="everysec") as server:
        assert_all_there(connect(server), ["first", "after"])


def test_users_come_and_go_and_the_last_one_ends_the_server_while_the_disk_is_full(disk: SmallDisk, connect: Connect) -> None:
    with disk.place.hold(restart_cap_s=0.2) as server:
        connect(server).set("first", _VALUE)
        disk.fill()
        with disk.place.hold() as other:
            assert other.keeper_pid == server.keeper_pid
    assert disk.place.is_free_within()

    with disk.place.hold() as server:
        assert connect(server).get("first") == _VALUE


def test_a_new_directory_on_a_full_disk_is_refused_with_the_reason(disk: SmallDisk) -> None:
    disk.place.data_dir.mkdir(mode=0o700)
    (disk.place.data_dir / "instance.lock").touch()  # for the fixture's last look
    disk.fill()

    with pytest.raises((EmbeddedServerError, OSError), match=r"is full|No space left") as refused:
        disk.place.hold(restart_cap_s=0.2)

    assert os.fspath(disk.mount) in str(refused.value)
    disk.free()
