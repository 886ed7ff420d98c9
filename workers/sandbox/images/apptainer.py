"""What Apptainer (or Singularity, which takes the same commands) does for images: fetches one from a registry as a SIF, packs a folder.

Runs with the whole environment of whoever asked: proxies, certificates and credentials of registries are set there. Nothing of it
reaches a sandbox. What it writes on the way goes beside the store, not to /tmp, which is often too small.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from workers.sandbox.errors import ImageError
from workers.sandbox.images.locks import Say, say_nothing
from workers.sandbox.images.programs import ProgramFailed, run_program

PROGRAMS = ("apptainer", "singularity")


def find_program(setting: str = "") -> str:
    """The command, from a setting or the search path; empty when there is none."""
    for name in [setting] if setting else PROGRAMS:
        found = shutil.which(name)
        if found:
            return found
    return ""


class Apptainer:
    """One program.

    Args:
        program: its path; empty = none is installed, which is said when it is needed.
        temporary: makes a folder where it may write large files while it works, and removes it.
    """

    def __init__(self, program: str, temporary: Callable[[], AbstractContextManager[Path]]) -> None:
        self.program = program
        self._temporary = temporary

    def pull_command(self, source: str, to: Path) -> list[str]:
        """The command line that fetches an image."""
        return [self.program, "pull", "--disable-cache", str(to), source]

    def pull(
        self, image: str, source: str, to: Path, timeout_s: float, say: Say = say_nothing, *, stop: threading.Event | None = None
    ) -> None:
        """Fetches an image from a registry into a SIF file.

        Raises:
            ImageError: there is no program, it failed, or it took too long.
        """
        self._run(image, self.pull_command(source, to), timeout_s, say, stop)

    def pack(self, image: str, folder: Path, to: Path, timeout_s: float, say: Say = say_nothing) -> None:
        """Packs a folder into a SIF file."""
        self._run(image, [self.program, "build", "--disable-cache", str(to), str(folder)], timeout_s, say)

    def unpack(
        self, image: str, sif: Path, to: Path, timeout_s: float, say: Say = say_nothing, *, stop: threading.Event | None = None
    ) -> None:
        """Unpacks a SIF into a folder that is not there yet."""
        self._run(image, [self.program, "build", "--disable-cache", "--sandbox", str(to), str(sif)], timeout_s, say, stop)

    def _run(self, image: str, argv: list[str], timeout_s: float, say: Say, stop: threading.Event | None = None) -> None:
        if not self.program:
            raise ImageError(
                image,
                "Apptainer is needed for this and neither apptainer nor singularity is on the path: install it, name it by "
                "ROLLSTREAM_IMAGE_APPTAINER, or bring the image as an archive: rollstream image pull NAME --source oci-archive:PATH",
            )
        with self._temporary() as folder:
            places = {name: str(folder) for name in ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR")}
            try:
                run_program(argv, timeout_s, say, environ={**places, **os.environ}, stop=stop)
            except ProgramFailed as error:
                raise ImageError(image, str(error)) from error
