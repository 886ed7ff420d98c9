"""What ours is measured against, each kind in an environment of its own, so that their versions never meet ours.

Made once by `rollstream bench [NAME] --rivals`, in the state folder, by one process at a time; it counts as there only with its mark, which
names what is installed and for which Python. RQ is in our own `ops` extra: where that is installed, the one we use is measured.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ops.launcher.bootstrap_pip import ensure_pip
from ops.launcher.installs import run_pip
from pipeline.folders import Folders, make_folder

TASKIQ = ("taskiq==0.13.0", "taskiq-redis==1.2.4")
FASTER = ("hiredis==3.5.0", "uvloop==0.23.0")
"""Taskiq uses both where they are installed, as we do."""
RQ = ("rq==3.0.0",)
REQUIREMENTS = (*TASKIQ, *FASTER, *RQ)
OPENHANDS = ("openhands-sdk==1.58.2", "openhands-tools==1.58.2", "libtmux==0.62.0")
OPENHANDS_PYTHON = (3, 12)
SWEREX = ("swe-rex==1.4.0",)
HOW_TO_GET = "rollstream bench --rivals"
_ASK_PYTHON = "import os, sys; print(sys.executable, os.path.realpath(sys.base_prefix), *sys.version_info[:2]); print(sys.version)"
_NEWEST_MINOR = 14


class Rivals:
    """One environment of rivals, there or not.

    Args:
        folder: where it is or would be; `bench-rivals` in the state folder of this user by default.
        requirements: what is installed in it, as pip takes it.
        least_python: the oldest Python that they run on; ours where it is new enough, else the newest one on the path.
    """

    def __init__(
        self, folder: Path | None = None, requirements: Sequence[str] = REQUIREMENTS, *, least_python: tuple[int, int] = (3, 11)
    ) -> None:
        self.folder = folder or Folders.from_environment().state / "bench-rivals"
        self._requirements = tuple(requirements)
        self._least_python = least_python

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def base(self) -> Path | None:
        """Where the Python that it was made from is installed; None when it is not there."""
        found = ask_python(self.python)
        return Path(found[1]) if found else None

    @property
    def _mark(self) -> Path:
        return self.folder / ".ready"

    def is_ready(self) -> bool:
        """Whether all rivals are installed, in these versions, for a Python that is still there."""
        try:
            said = self._mark.read_text(encoding="utf-8")
        except OSError:
            return False
        maker = self._maker()
        return maker is not None and said == self._wanted(maker) and self.python.exists()

    def python_with_taskiq(self) -> Path | None:
        """The interpreter that has taskiq, or None."""
        return self.python if self.is_ready() else None

    def python_with_rq(self) -> Path | None:
        """The interpreter that has RQ: ours where it is installed, else the rivals', else None."""
        if find_spec("rq") is not None:
            return Path(sys.executable)
        return self.python if self.is_ready() else None

    def make(self) -> Path:
        """Makes it, or goes on where an earlier call was interrupted; waits for another process that is at it.

        Returns:
            Its folder.

        Raises:
            NoPython: none here is new enough.
            ops.launcher.installs.InstallFailed: pip could not; the next call goes on from what is there.
            ops.launcher.package_index.IndexUnusable: there is no pip, and none could be fetched.
        """
        maker = self._maker()
        if maker is None:
            raise NoPython(self._requirements, self._least_python)
        with self._lock() as held:
            if self.is_ready():
                return self.folder
            self._mark.unlink(missing_ok=True)
            if maker[0] == sys.executable:
                venv.create(self.folder, with_pip=False, symlinks=True)
            elif maker[0] != str(self.python):
                subprocess.run([maker[0], "-I", "-m", "venv", "--without-pip", str(self.folder)], check=True)
            ensure_pip(self.python)
            arguments = ["install", "--only-binary", ":all:", *self._requirements]
            run_pip(self.python, arguments, log=self.folder / "setup.log", cwd=self.folder, keep_open=[held])
            draft = self.folder / ".ready.new"
            draft.write_text(self._wanted(maker), encoding="utf-8")
            draft.replace(self._mark)
        return self.folder

    def _maker(self) -> tuple[str, str, str] | None:
        """The Python that it is made from: ours, else the one that it has, else one on the path; None when there is none."""
        if sys.version_info[:2] >= self._least_python:
            return sys.executable, os.path.realpath(sys.base_prefix), sys.version
        return ask_python(self.python) or find_python(self._least_python)

    def _wanted(self, maker: tuple[str, str, str]) -> str:
        return "\n".join((maker[2], maker[1], *self._requirements))

    @contextmanager
    def _lock(self) -> Iterator[int]:
        """Pip inherits the descriptor: the lock holds until pip is gone too, also when we are killed."""
        descriptor = os.open(make_folder(self.folder) / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


class NoPython(Exception):
    """No Python here runs those rivals."""

    def __init__(self, requirements: Sequence[str], least: tuple[int, int]) -> None:
        wanted = ".".join(map(str, least))
        super().__init__(f"{', '.join(requirements)} run on Python {wanted} and newer, and there is none on the path")


def openhands() -> Rivals:
    """The environment of the terminals of OpenHands."""
    return Rivals(Folders.from_environment().state / "bench-openhands", OPENHANDS, least_python=OPENHANDS_PYTHON)


def swerex() -> Rivals:
    """The environment of SWE-ReX."""
    return Rivals(Folders.from_environment().state / "bench-swerex", SWEREX)


def of_benchmark() -> Mapping[str, tuple[Rivals, ...]]:
    """Which environments a benchmark uses, by its name."""
    return {"pipeline": (Rivals(),), "shell": (openhands(), swerex())}


def make_environments(name: str, say: Callable[[str], None]) -> None:
    """Makes those of one benchmark, or all with "", in the state folder, and says where; one that no Python here runs is said too."""
    for known, of_one in of_benchmark().items():
        for rivals in of_one if name in ("", known) else ():
            try:
                say(f"rivals are in {rivals.make()}")
            except NoPython as error:
                say(f"left out: {error}")


def find_python(least: tuple[int, int]) -> tuple[str, str, str] | None:
    """The newest one on the path: the program, where it is installed, what it says of its version."""
    for minor in range(_NEWEST_MINOR, least[1] - 1, -1):
        program = shutil.which(f"python{least[0]}.{minor}")
        found = ask_python(Path(program)) if program else None
        if found is not None:
            return found
    return None


def ask_python(program: Path) -> tuple[str, str, str] | None:
    """The same of one program; None when it does not run, as one that only stands for versions which are not installed."""
    try:
        asked = subprocess.run([program, "-I", "-c", _ASK_PYTHON], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return None
    if asked.returncode:
        return None
    first, version = asked.stdout.split("\n", 1)
    executable, base, *_ = first.split(" ")
    return executable, base, version.strip("\n")
