"""Promtool for the tests of alerts: found, named by a person, or taken out of a package of which nothing else is kept."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ops.launcher.environment import Environment
from ops.launcher.logged import CommandFailed, Steps
from ops.launcher.promtool import find_promtool, for_pytest, promtool_version, take_program


def a_promtool(path: Path, version: str) -> Path:
    """An executable that answers `--version` as the real one does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "promtool, version {version}+ds (branch: debian/sid, revision: {version}+ds-5)"\necho "go1.19.8"\n')
    path.chmod(0o755)
    return path


def test_the_one_that_a_person_names_wins_then_the_system_s_then_ours(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    ours = a_promtool(tmp_path / ".venv/tools/promtool", "2.42.0")
    system = a_promtool(tmp_path / "bin/promtool", "3.5.1")
    mine = a_promtool(tmp_path / "mine", "2.53.0")

    by_name = find_promtool(environment, {"PATH": str(system.parent), "ROLLSTREAM_TEST_PROMTOOL": str(mine)})
    on_path = find_promtool(environment, {"PATH": str(system.parent)})
    own = find_promtool(environment, {"PATH": ""})

    assert [(leg.path, leg.version) for leg in (by_name, on_path, own)] == [(mine, "2.53.0"), (system, "3.5.1"), (ours, "2.42.0")]
    assert for_pytest(own, is_required=True) == {"ROLLSTREAM_TEST_PROMTOOL": str(ours), "ROLLSTREAM_REQUIRE_PROMTOOL": "1"}


def test_what_does_not_run_is_no_promtool_and_a_missing_one_is_required_where_none_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"\x7fELF for another machine")
    (tmp_path / "foreign").chmod(0o755)

    none = find_promtool(Environment(tmp_path), {"PATH": ""})
    wrong = find_promtool(Environment(tmp_path), {"PATH": "", "ROLLSTREAM_TEST_PROMTOOL": str(tmp_path / "foreign")})

    assert promtool_version(tmp_path / "foreign") is None
    assert (none.path, wrong.path) == (None, None)
    assert none.how_to_enable.endswith("./ops/launch test") or "--system-packages" in none.how_to_enable
    assert "ROLLSTREAM_TEST_PROMTOOL" in wrong.why_missing
    assert for_pytest(none, is_required=True) == {"ROLLSTREAM_REQUIRE_PROMTOOL": "1"}
    assert for_pytest(none, is_required=False) == {}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="only Debian packs packages")
def test_of_the_package_only_the_program_is_kept(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: prometheus\nVersion: 2.42\nArchitecture: all\nMaintainer: nobody\nDescription: a server\n"
    )
    (tree / "DEBIAN/control").chmod(0o644)
    (tree / "DEBIAN").chmod(0o755)
    a_promtool(tree / "usr/bin/promtool", "2.42.0")
    a_promtool(tree / "usr/bin/prometheus", "2.42.0")
    scratch, place = tmp_path / "scratch", tmp_path / "tools/promtool"
    scratch.mkdir()
    place.parent.mkdir()
    steps = Steps(log=tmp_path / "log")

    pack(tree, scratch / "whole.deb")
    take_program(scratch / "whole.deb", place, steps)
    (tree / "usr/bin/promtool").unlink()
    shutil.rmtree(scratch / "root")
    pack(tree, scratch / "without.deb")
    with pytest.raises(CommandFailed, match="has no usr/bin/promtool"):
        take_program(scratch / "without.deb", place, steps)

    assert promtool_version(place) == "2.42.0"
    assert [path.name for path in place.parent.iterdir()] == ["promtool"]


def pack(tree: Path, package: Path) -> None:
    """Without compression: it is read once."""
    subprocess.run(["dpkg-deb", "-Znone", "--build", "--root-owner-group", tree, package], check=True, capture_output=True)
