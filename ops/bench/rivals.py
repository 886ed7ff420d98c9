"""Where the queues live that ours is measured against: an environment of their own, so that their versions never meet ours.

It is made once by `rollstream bench --rivals`, in the state folder, by one process at a time; it counts as there only with its mark, which
names what is installed and for which Python. RQ is in our own `ops` extra: where that is installed, the one we use is measured.
"""

from __future__ import annotations

import fcntl
import os
import sys
import venv
from collections.abc import Iterator, Sequence
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
HOW_TO_GET = "rollstream bench --rivals"


class Rivals:
    """The environment of the rivals, there or not.

    Args:
        folder: where it is or would be; the state folder of this user by default.
        requirements: what is installed in it, as pip takes it.
    """

    def __init__(self, folder: Path | None = None, requirements: Sequence[str] = REQUIREMENTS) -> None:
        self.folder = folder or Folders.from_environment().state / "bench-rivals"
        self._requirements = tuple(requirements)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def _mark(self) -> Path:
        return self.folder / ".ready"

    def is_ready(self) -> bool:
        """Whether all rivals are installed, in these versions, for this Python."""
        try:
            return self._mark.read_text(encoding="utf-8") == self._wanted() and self.python.exists()
        except OSError:
            return False

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
            ops.launcher.installs.InstallFailed: pip could not; the next call goes on from what is there.
            ops.launcher.package_index.IndexUnusable: there is no pip, and none could be fetched.
        """
        with self._lock() as held:
            if self.is_ready():
                return self.folder
            self._mark.unlink(missing_ok=True)
            venv.create(self.folder, with_pip=False, symlinks=True)
            ensure_pip(self.python)
            arguments = ["install", "--only-binary", ":all:", *self._requirements]
            run_pip(self.python, arguments, log=self.folder / "setup.log", cwd=self.folder, keep_open=[held])
            draft = self.folder / ".ready.new"
            draft.write_text(self._wanted(), encoding="utf-8")
            draft.replace(self._mark)
        return self.folder

    def _wanted(self) -> str:
        return "\n".join((sys.version, os.path.realpath(sys.base_prefix), *self._requirements))

    @contextmanager
    def _lock(self) -> Iterator[int]:
        """Pip inherits the descriptor: the lock holds until pip is gone too, also when we are killed."""
        descriptor = os.open(make_folder(self.folder) / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def make_environment() -> Path:
    """Makes the environment of the rivals in the state folder; returns its folder."""
    return Rivals().make()
