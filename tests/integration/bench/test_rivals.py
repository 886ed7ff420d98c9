"""The rivals' environment: made once, by one process at a time, and gone on with where it was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.bench import rival_pipeline
from ops.bench.rivals import Rivals
from ops.launcher.installs import InstallFailed


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all there is of a package index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def put_wheel(wheels: Path, name: str, version: str) -> None:
    """A package of one module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def version_in(rivals: Rivals) -> str:
    asked = subprocess.run(
        [rivals.python, "-I", "-c", "import swift; print(swift.VERSION)"], capture_output=True, text=True, check=True, timeout=30
    )
    return asked.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_it_is_there_only_when_all_of_it_is_and_made_once_for_each_choice_of_versions(wheels: Path, tmp_path: Path) -> None:
    """One environment in all its states, since each takes seconds to make: with an empty index, for two at once, with other versions."""
    folder, log = tmp_path / "rivals", tmp_path / "rivals" / "setup.log"
    rivals = Rivals(folder, ["swift==1.0"])
    with pytest.raises(InstallFailed):
        rivals.make()  # the index is empty
    assert not rivals.is_ready()
    assert rivals.python_with_taskiq() is None

    put_wheel(wheels, "swift", "1.0")
    both = [Rivals(folder, ["swift==1.0"]) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(Rivals.make, both))

    assert made == [folder] * 2
    assert log.read_text().count("Successfully installed") == 1
    assert rivals.is_ready()
    assert rivals.python_with_taskiq() == rivals.python
    assert version_in(rivals) == "1.0"

    put_wheel(wheels, "swift", "1.1")
    later = Rivals(folder, ["swift==1.1"])
    assert not later.is_ready()

    later.make()

    assert version_in(later) == "1.1"
    assert not rivals.is_ready()


def test_rq_is_the_one_that_we_use(tmp_path: Path) -> None:
    assert Rivals(tmp_path / "none").python_with_rq() == Path(sys.executable)


def test_what_a_rival_starts_ends_with_who_started_the_rival() -> None:
    """Also processes of its own making, which know nothing of the pipe."""
    read_end, write_end = os.pipe()
    program = (
        "import subprocess, sys; sys.path.insert(0, sys.argv[1]); from leash import end_with_parent; end_with_parent(); "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(child.pid, flush=True); child.wait()"
    )
    rival = subprocess.Popen(
        [sys.executable, "-c", program, rival_pipeline.PROGRAMS],
        stdout=subprocess.PIPE,
        env={**os.environ, "ROLLSTREAM_PARENT_FD": str(read_end)},
        pass_fds=(read_end,),
        start_new_session=True,
    )
    os.close(read_end)
    assert rival.stdout is not None
    with rival.stdout:
        assert int(rival.stdout.readline()) > 0  # it runs

        os.close(write_end)

        assert rival.wait(timeout=10) == -signal.SIGKILL
        assert rival.stdout.read() == b"", "its end: what the rival started held it open and is gone too"
