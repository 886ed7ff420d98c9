"""The parts that decide without a server: pauses, memory, configuration text, addresses, folders, locks."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedded import RedisAddress, resolve_redis_url
from pipeline.embedded.locks import FileLock, Mode, is_held
from pipeline.embedded.memory import default_maxmemory_bytes, memory_limit_bytes
from pipeline.embedded.server_config import render
from pipeline.embedded.supervision import restart_pause_s
from pipeline.errors import InvalidRequest
from pipeline.file_systems import file_system_of
from pipeline.folders import (
    MAX_SOCKET_PATH_BYTES,
    FolderError,
    Folders,
    make_own_folder,
    make_private_folder,
    probe_folder,
    socket_path,
)

PHYSICAL_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_server_that_keeps_ending_is_started_with_growing_pauses_up_to_the_cap() -> None:
    assert [restart_pause_s(failures, 5.0) for failures in range(1, 10)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert restart_pause_s(10_000, 5.0) == 5.0


def test_the_memory_bound_is_a_quarter_up_to_four_gibibytes() -> None:
    assert default_maxmemory_bytes(1 << 30) == 256 << 20
    assert default_maxmemory_bytes(64 << 30) == 4 << 30


def make_group(root: Path, group: str, file: str, limit: str) -> None:
    folder = root / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(limit + "\n")


def make_proc(root: Path, text: str) -> Path:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(text)
    return root / "proc"


def test_a_control_group_of_version_2_bounds_memory_also_when_the_limit_is_on_a_group_above(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, "0::/slice/job\n")
    groups = tmp_path / "groups"
    make_group(groups, "slice", "memory.max", str(300 << 20))
    make_group(groups, "slice/job", "memory.max", "max")

    assert memory_limit_bytes(proc=proc, cgroups=groups) == 300 << 20


def test_a_control_group_of_version_1_bounds_memory_and_its_huge_number_means_none(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n")
    groups = tmp_path / "groups"
    make_group(groups, "memory", "memory.limit_in_bytes", "9223372036854771712")
    assert memory_limit_bytes(proc=proc, cgroups=groups) == PHYSICAL_BYTES

    make_group(groups, "memory/docker/abc", "memory.limit_in_bytes", str(200 << 20))
    assert memory_limit_bytes(proc=proc, cgroups=groups) == 200 << 20


def test_in_a_container_that_sees_only_its_own_group_the_mounts_root_counts(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, "0::/system.slice/docker-abc.scope\n")
    groups = tmp_path / "groups"
    make_group(groups, ".", "memory.max", str(100 << 20))

    assert memory_limit_bytes(proc=proc, cgroups=groups) == 100 << 20


def test_without_control_groups_physical_memory_counts(tmp_path: Path) -> None:
    assert memory_limit_bytes(proc=tmp_path, cgroups=tmp_path) == PHYSICAL_BYTES


def test_values_are_quoted_where_the_servers_parser_needs_it() -> None:
    text = render([("save", ""), ("dir", "/a b"), ("user", "x", "~{rs*}:*", "#ab"), ("unixsocket", '/q"\\'), ("dir", "/ü")])

    assert text.splitlines() == ['save ""', 'dir "/a b"', "user x ~{rs*}:* #ab", r'unixsocket "/q\x22\x5c"', r'dir "/\xc3\xbc"']


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_a_rendered_value_is_one_word_on_one_line(value: str) -> None:
    text = render([("dir", value)])

    assert text.count("\n") == 1
    assert text.startswith("dir ")


def test_no_url_means_no_address() -> None:
    assert resolve_redis_url({}) is None
    assert resolve_redis_url({"ROLLSTREAM_REDIS_URL": ""}) is None


def test_a_password_comes_from_its_file_and_shows_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret/@:\n")

    address = resolve_redis_url({"ROLLSTREAM_REDIS_URL": "redis://worker@host:7000/2", "ROLLSTREAM_REDIS_PASSWORD_FILE": str(file)})

    assert address == RedisAddress(url="redis://worker@host:7000/2", password="s3cret/@:")
    assert "s3cret" not in repr(address)
    assert address is not None
    assert address.url_with_password() == "redis://worker:s3cret%2F%40%3A@host:7000/2"


def test_a_password_in_the_url_is_taken_out_of_it() -> None:
    address = resolve_redis_url({"ROLLSTREAM_REDIS_URL": "rediss://:p%40ss@host:7000/0"})

    assert address == RedisAddress(url="rediss://host:7000/0", password="p@ss")
    assert address is not None
    assert address.url_with_password() == "rediss://:p%40ss@host:7000/0"


def test_a_unix_socket_is_an_address() -> None:
    with_password = resolve_redis_url({"ROLLSTREAM_REDIS_URL": "unix:///run/r.sock?db=1&password=p%20w"})
    assert with_password == RedisAddress(url="unix:///run/r.sock?db=1", password="p w")
    assert with_password is not None
    assert with_password.url_with_password() == "unix://:p%20w@/run/r.sock?db=1"
    assert resolve_redis_url({"ROLLSTREAM_REDIS_URL": "unix:///run/r.sock?db=1"}) == RedisAddress(url="unix:///run/r.sock?db=1")


@pytest.mark.parametrize("url", ["http://host", "host:6379", "redis://", "6379"])
def test_a_url_of_something_else_is_refused_by_the_name_of_its_setting(url: str) -> None:
    with pytest.raises(InvalidRequest, match="ROLLSTREAM_REDIS_URL: must look like redis://host:port/0"):
        resolve_redis_url({"ROLLSTREAM_REDIS_URL": url})


def test_two_passwords_a_missing_and_an_empty_password_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    environ = {"ROLLSTREAM_REDIS_URL": "redis://h", "ROLLSTREAM_REDIS_PASSWORD_FILE": str(file)}
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        resolve_redis_url(environ)
    file.write_text("\n")
    with pytest.raises(InvalidRequest, match="must hold one line"):
        resolve_redis_url(environ)
    file.write_text("a\n")
    with pytest.raises(InvalidRequest, match="keep one of them"):
        resolve_redis_url({**environ, "ROLLSTREAM_REDIS_URL": "redis://:b@h"})


def test_folders_follow_their_settings_then_the_sessions_then_the_home(tmp_path: Path) -> None:
    runtime = tmp_path / "r"
    runtime.mkdir()
    uid = os.getuid()
    short = {"HOME": "/home/x", "XDG_RUNTIME_DIR": "/dev/shm", "XDG_DATA_HOME": "/d", "XDG_STATE_HOME": "not/absolute", "TMPDIR": "/t"}

    found = Folders.from_environment(short)

    assert found.run == (Path("/dev/shm/rollstream") if Path("/dev/shm").stat().st_uid == uid else Path(f"/tmp/rollstream-{uid}"))
    assert found.data == Path("/d/rollstream")
    assert found.state == Path("/home/x/.local/state/rollstream")
    assert found.scratch == Path(f"/t/rollstream-scratch-{uid}")
    assert Folders.from_environment({**short, "XDG_RUNTIME_DIR": "/nonexistent"}).run == Path(f"/tmp/rollstream-{uid}")
    assert Folders.from_environment({**short, "XDG_RUNTIME_DIR": str(runtime / ("long" * 20))}).run == Path(f"/tmp/rollstream-{uid}")
    named = {f"ROLLSTREAM_{name}_DIR": f"/{name}" for name in ("RUN", "DATA", "SCRATCH", "STATE")}
    assert Folders.from_environment(named | {"HOME": "/h"}) == Folders(
        run=Path("/RUN"), data=Path("/DATA"), scratch=Path("/SCRATCH"), state=Path("/STATE")
    )


def test_a_folder_setting_that_is_not_absolute_is_refused() -> None:
    with pytest.raises(FolderError, match="ROLLSTREAM_DATA_DIR must be an absolute path"):
        Folders.from_environment({"ROLLSTREAM_DATA_DIR": "data", "HOME": "/h"})


def test_a_private_folder_is_made_with_its_parents_and_only_for_us(tmp_path: Path) -> None:
    folder = make_private_folder(tmp_path / "a" / "b")

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert make_private_folder(folder) == folder


def test_a_folder_that_does_not_fit_names_the_setting_that_moves_it(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen").chmod(0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o775)

    assert make_own_folder(tmp_path / "seen", "ROLLSTREAM_STATE_DIR") == tmp_path / "seen"
    with pytest.raises(FolderError, match=r"has mode 0775, others may write there: .* set ROLLSTREAM_STATE_DIR"):
        make_own_folder(tmp_path / "open", "ROLLSTREAM_STATE_DIR")
    with pytest.raises(FolderError, match=r"has mode 0755, others may enter: .* set ROLLSTREAM_SCRATCH_DIR"):
        make_private_folder(tmp_path / "seen", "ROLLSTREAM_SCRATCH_DIR")


def test_a_socket_path_may_have_the_kernels_length_and_no_more() -> None:
    folder = Path("/") / ("f" * (MAX_SOCKET_PATH_BYTES - len("//s")))

    assert len(os.fsencode(socket_path(folder, "s"))) == MAX_SOCKET_PATH_BYTES
    with pytest.raises(FolderError, match="a socket's path may have"):
        socket_path(folder, "ss")


def test_a_probe_tells_of_the_file_system_of_a_folder_and_of_one_that_is_not_there_yet(tmp_path: Path) -> None:
    there, future = probe_folder(tmp_path), probe_folder(tmp_path / "not" / "yet")

    assert (there.exists, there.is_writable) == (True, True)
    assert (future.exists, future.is_writable) == (False, True)
    assert there.file_system == future.file_system == file_system_of(tmp_path)
    assert there.free_bytes > 0
    assert not there.file_system.is_network


def test_a_folder_in_memory_is_known_as_such() -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("this system has no /dev/shm")

    assert file_system_of(Path("/dev/shm")).is_volatile


def test_a_waiting_exclusive_lock_does_not_hold_up_new_shared_ones(tmp_path: Path) -> None:
    """The keeper waits exclusively for as long as there are users; newcomers must get in all the same."""
    path = tmp_path / "lock"
    first, keeper = FileLock(path), FileLock(path)
    assert first.try_lock(Mode.SHARED)
    granted = threading.Event()

    def wait() -> None:
        keeper.lock(Mode.EXCLUSIVE)
        granted.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    newcomer = FileLock(path)

    assert newcomer.lock_within(Mode.SHARED, 5.0)
    first.close()
    assert not granted.wait(0.05)
    newcomer.close()
    assert granted.wait(5.0)
    waiter.join()
    keeper.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not tell who has which lock")
def test_a_look_tells_whether_a_lock_is_held_and_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)  # there is no file
    with FileLock(path) as lock:
        assert not is_held(path)
        assert lock.try_lock(Mode.EXCLUSIVE)
        assert is_held(path)
    assert not is_held(path)


def test_a_wait_for_a_lock_that_was_given_up_does_not_take_it_later(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder, impatient, patient = FileLock(path), FileLock(path), FileLock(path)
    assert holder.try_lock(Mode.EXCLUSIVE)
    assert not impatient.lock_within(Mode.EXCLUSIVE, 0.01)

    holder.close()

    assert patient.lock_within(Mode.EXCLUSIVE, 5.0)
    patient.close()
