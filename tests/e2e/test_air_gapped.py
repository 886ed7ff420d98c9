"""A bundle on a machine without any network: a small project of its own, with this project's launcher."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ops.launcher import make_bundle
from ops.launcher.bundle_file import read_manifest
from ops.launcher.environment import Environment
from tests.e2e.conftest import ROOT

ALONE = ("unshare", "--map-root-user", "--net")
"""In a network namespace that has no interface."""
PYPROJECT = """\
[build-system]
requires = []
build-backend = "in_tree"
backend-path = ["ops"]

[project]
name = "rollstream"
version = "3.0"
dependencies = ["a-package"]

[project.optional-dependencies]
workers = []
ops = ["other-package; python_version >= '3.11'", "never; python_version < '3'"]
"""
BACKEND = '''
"""Builds the project as editable: its folder on the path."""
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    info, name = "rollstream-3.0.dist-info/", "rollstream-3.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("rollstream.pth", os.getcwd())
        wheel.writestr(info + "METADATA", METADATA)
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", f"rollstream.pth,,\\n{info}METADATA,,\\n{info}WHEEL,,\\n{info}RECORD,,\\n")
    return name

METADATA = """Metadata-Version: 2.1
Name: rollstream
Version: 3.0
Requires-Dist: a-package
Provides-Extra: workers
Provides-Extra: ops
Requires-Dist: other-package; extra == "ops"
"""
'''
COMMAND = """
import socket, sys
import a_package, other_package
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error:
    print("network:", error.strerror)
print("runs", *sys.argv[1:], "in", __file__)
"""


def a_wheel(folder: Path, name: str) -> None:
    """Of a package that is one empty module."""
    stem = name.replace("-", "_")
    info = f"{stem}-1.0.dist-info/"
    texts = {
        f"{stem}.py": "",
        info + "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        info + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,{len(text)}\n" for file, text in texts.items()) + f"{info}RECORD,,\n"
    with zipfile.ZipFile(folder / f"{stem}-1.0-py3-none-any.whl", "w") as wheel:
        for file, text in {**texts, info + "RECORD": record}.items():
            wheel.writestr(file, text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Where there is a network: the project, with this test's environment as its own."""
    root = tmp_path / "with network"
    shutil.copytree(ROOT / "ops/launcher", root / "ops/launcher", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "ops/launch", root / "ops/launch")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "ops/in_tree.py").write_text(BACKEND)
    (root / "ops/cli").mkdir()
    (root / "ops/cli/__main__.py").write_text(COMMAND)
    for package in ("ops", "ops/cli"):
        (root / package / "__init__.py").touch()
    (root / ".venv").symlink_to(sys.prefix)
    return root


@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs network namespaces",
)
@pytest.mark.timeout(300)
def test_launches_without_a_network_run_what_is_in_the_bundle(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two at once on one machine, while a third unpacks: they wait, one reads the bundle, one installs, both run. Later ones read its list
    alone."""
    index = tmp_path / "index"
    index.mkdir()
    for name in ("a-package", "other-package", "pip"):
        a_wheel(index, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    bundle = tmp_path / "rs.tar"
    assert make_bundle.make(Environment(project), make_bundle.parse(["--output", str(bundle), "--glibc", "2.17"])) == 0
    said = capsys.readouterr().out
    assert f"sha256 {hashlib.sha256(bundle.read_bytes()).hexdigest()}" in said
    assert ", 3 wheels," in said
    shutil.rmtree(index)
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "ROLLSTREAM_PYTHON": sys.executable,
        "PIP_INDEX_URL": "http://192.0.2.1/simple",
    }
    command = [*ALONE, str(project / "ops/launch"), "node", "--bundle", str(bundle), "--run", "4"]
    environ["ROLLSTREAM_SCRATCH_DIR"] = str(tmp_path / "scratch")
    (project / ".venv").unlink()

    place = tmp_path / "scratch/bundles"
    place.mkdir(mode=0o700, parents=True)
    place.parent.chmod(0o700)

    with (place / f"{read_manifest(bundle).id[:16]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
        waits = [process.stdout.readline() for process in first if process.stdout is not None]
        unpacked = [path.name for path in place.iterdir() if path.is_dir()]
    told = [process.communicate(timeout=250)[0] for process in first]

    assert [process.returncode for process in first] == [0, 0], told
    assert (["another launch unpacks rs.tar" in line for line in waits], unpacked) == ([True, True], [])
    for text in told:
        assert "network: Network is unreachable" in text
        assert f"runs node run --run 4 in {place}/" in text
    assert "".join(told).count("Unpacked rs.tar") == 1
    assert "".join(told).count("packages in place") == 1
    assert "".join(told).count("wheels from no index, find-links only") == 1
    assert not (project / ".venv").exists()

    with bundle.open("r+b") as file:
        file.truncate(64 * 1024)
    again = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert (again.returncode, len(again.stdout.splitlines())) == (0, 2), again.stdout + again.stderr
    assert again.stdout.splitlines()[-1].startswith("runs node run --run 4 in "), "nothing was unpacked or installed again"
