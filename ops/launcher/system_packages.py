"""Debian packages for legs that are missing: as root, else through sudo. Nothing here is called without `--system-packages`."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ops.launcher import child
from ops.launcher.legs import Leg
from ops.launcher.terminal import say


def as_root(*command: str | Path) -> list[str]:
    """A command as root runs it."""
    return [*(() if os.geteuid() == 0 else ("sudo",)), *map(str, command)]


def install_packages(legs: Iterable[Leg]) -> None:
    """Ask apt for what the missing legs need; one that cannot be had is said, and its leg stays out."""
    missing = [leg for leg in legs if leg.path is None and leg.packages]
    packages = sorted({package for leg in missing for package in leg.packages})
    if not packages:
        return
    if shutil.which("apt-get") is None:
        say(f"No apt-get here: install {', '.join(packages)} (for {', '.join(leg.name for leg in missing)}) with the system's own means.")
        return
    for what in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        command = as_root("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", *what)
        say(f"Running {' '.join(command)}")
        if child.run(command):
            say("  apt-get ended with an error (above); what needs it stays out")
            return
