"""The kind of machine that a bundle is for."""

import os
import platform
import re
import sys
from dataclasses import dataclass

DEFAULT_GLIBC = "2.28"
"""That of Red Hat 8 and what is built like it, the oldest that clusters still run; wheels for it run on newer ones."""
_OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
"""Of glibc 2.<n>, before tags had the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which Python, system and machine."""

    python: str
    """`3.12`: wheels are for one of them."""
    system: str
    """`linux` or `darwin`."""
    machine: str
    """`x86_64`, `aarch64` or `arm64`."""
    glibc: str
    """The oldest; empty on macOS."""

    def pip_arguments(self) -> list[str]:
        """What makes pip choose wheels for it, when another kind of machine asks."""
        if self.system != "linux":
            return []
        newest = int(self.glibc.partition(".")[2])
        tags = [f"manylinux_2_{minor}" for minor in range(newest, 4, -1)] + [name for minor, name in _OLD_NAMES.items() if minor <= newest]
        platforms = [f"{tag}_{self.machine}" for tag in (*tags, "linux")]
        return ["--python-version", self.python, "--implementation", "cp", *(part for name in platforms for part in ("--platform", name))]

    def refusal(self) -> str:
        """Why this Python on this machine is another kind; empty when it is not."""
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if (self.system, self.machine) != (sys.platform, platform.machine()):
            return (
                f"it is for {self.system} on {self.machine}, and this is {sys.platform} on {platform.machine()}: make one for this machine"
            )
        libc, version = platform.libc_ver()
        if self.glibc and (libc != "glibc" or number(version) < number(self.glibc)):
            found = f"{libc} {version}".strip() or "another C library"
            return f"it is for glibc {self.glibc} and newer, and here is {found}: make one with `--glibc {version or 'VERSION'}`"
        if self.python != here or sys.implementation.name != "cpython":
            return (
                f"it is for Python {self.python}, and this is {sys.implementation.name} {here} ({sys.executable}): "
                f"ROLLSTREAM_PYTHON=/path/to/python{self.python} names the right one, or make one with `--python python{here}`"
            )
        return ""


def number(version: str) -> tuple[int, ...]:
    """Of a version, for comparing."""
    return tuple(int(word) for word in re.findall(r"\d+", version)[:2])


def target_of(python: str, *, machine: str, glibc: str) -> Target:
    """For a Python that runs on this system.

    Args:
        python: its version, `3.12`.
        machine: empty = as this one.

    Raises:
        ValueError: it cannot be; says why.
    """
    if not re.fullmatch(r"2\.\d{1,2}", glibc) or number(glibc) < (2, 17):
        raise ValueError(f"--glibc {glibc}: expected 2.17 or newer, as `ldd --version` has it there")
    if machine and machine not in ("x86_64", "aarch64", "arm64"):
        raise ValueError(f"--machine {machine}: expected x86_64 or aarch64, as `uname -m` has it there")
    if sys.platform == "darwin" and machine not in ("", os.uname().machine):
        raise ValueError("on macOS bundles are for machines like this one")
    is_linux = sys.platform == "linux"
    return Target(python=python, system=sys.platform, machine=machine or os.uname().machine, glibc=glibc if is_linux else "")
