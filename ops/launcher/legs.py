"""One thing that tests run on and that may be missing here: a server, an unprivileged user, a container runtime, an image."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """Found or not, and then how to get it."""

    name: str
    path: Path | None = None
    """Where it is; None when it is missing."""
    version: str = ""
    why_missing: str = ""
    how_to_enable: str = ""
    packages: tuple[str, ...] = ()
    """Debian packages that bring it, or that it is made with; asked for only with `--system-packages`."""


def version_said(binary: Path, pattern: str) -> str | None:
    """What a program calls itself with `--version`, the pattern's group; None when it does not run here."""
    try:
        asked = subprocess.run(
            [str(binary), "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    named = re.search(pattern, asked.stdout + asked.stderr, re.MULTILINE)
    return named[1] if named and asked.returncode == 0 else None
