"""What tests of sandboxes with walls find on a machine, once for all of them: the launcher names what it brought, pytest alone finds it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

GROUND = Path(sys.prefix) / "sandboxes"
"""Where `./ops/launch test --system-packages` keeps what it made."""
HOW = "./ops/launch test --system-packages brings it"


def image_folder() -> Path | None:
    """A root file system as a folder that this user owns, with bash, git, procps, python3 and ipykernel."""
    image = Path(os.environ.get("ROLLSTREAM_TEST_IMAGE") or GROUND / "rootfs")
    return image if image.is_dir() and image.stat().st_uid == os.geteuid() else None


def apptainer_program() -> Path | None:
    """The system's Apptainer or Singularity, else the one that was brought."""
    ours = str(GROUND / "apptainer/usr/bin")
    for name in ("apptainer", "singularity"):
        found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{ours}")
        if found:
            return Path(found)
    return None
