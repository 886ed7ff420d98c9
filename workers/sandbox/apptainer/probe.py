"""Whether Apptainer, or Singularity, works here for sandboxes: each step that they need is tried alone, and the first that fails is named.

Only containers in user namespaces are tried. A setuid installation serves as well, as long as the node allows user namespaces; where it
does not, its containers could be started but never entered, which is said.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.file_systems import FileSystem, file_system_of
from workers.sandbox.apptainer.backend import CONFIGURATION, HELPERS_PATH, NOT_MOUNTED
from workers.sandbox.local.causes import ROOT_REFUSED, name_cause
from workers.sandbox.local.holder import overlaying
from workers.sandbox.local.node_root import NodeRoot

PROGRAMS = ("apptainer", "singularity")
"""In the order in which they are tried."""
MOUNT_LAYERS = (sys.executable, "-I", "-S", overlaying.__file__)
"""As the holder does it, in a process of its own: one that has threads cannot."""
CHANGE_FOLDERS = "cd /tried && rm -r removed && mv renamed new && echo file >removed && echo there >new/with/file"
TRY_TIMEOUT_S = 20.0
"""A start takes 0.1 s; where many start at once, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundApptainer:
    """The first candidate that works, or why none does."""

    path: Path | None
    own_configuration: bool
    """Whether it takes a configuration of ours."""
    why: str
    """Empty when one was found."""


def candidates(path: str | None = None) -> list[Path]:
    """All there are on a search path (default: this process's own), best first."""
    return [Path(found) for name in PROGRAMS if (found := shutil.which(name, path=path))]


def find_apptainer(scratch: Path, programs: Sequence[Path] | None = None) -> FoundApptainer:
    """Tries the candidates. Blocks for some 0.5 s each.

    Args:
        scratch: an existing folder where sandboxes will live: overlays depend on its file system.
        programs: instead of those on the search path.
    """
    reasons = []
    for program in candidates() if programs is None else programs:
        own_configuration = not is_setuid(program)
        why = probe_apptainer(program, scratch, own_configuration=own_configuration)
        if not why:
            return FoundApptainer(path=program, own_configuration=own_configuration, why="")
        reasons.append(f"{program}: {why}")
    missing = "neither apptainer nor singularity is on the search path: many clusters have it as a module"
    return FoundApptainer(path=None, own_configuration=False, why="; ".join(reasons) or missing)


def is_setuid(program: Path) -> bool:
    """Whether it was installed to start containers with the rights of root; such an installation takes no configuration of a user's."""
    told = _run([str(program), "buildcfg"])
    return any(line.endswith("_SUID_INSTALL=1") for line in told.stdout.splitlines())


def probe_apptainer(program: Path, scratch: Path, *, own_configuration: bool = True) -> str:
    """The first step that fails, its cause and what to do; empty when all work. Blocks."""
    if os.geteuid() == 0:
        return ROOT_REFUSED
    version = _run([str(program), "--version"])
    if version.problem:
        return f"it does not run: {version.problem}"
    refused = refuse_file_system(scratch, file_system_of(scratch))
    if refused:
        return refused
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=scratch) as name:
        place = Path(name)
        root = NodeRoot()
        lower = root.skeleton(place / "root", "/")
        for folder in ("upper", "work", "merged"):
            (place / folder).mkdir()
        for mounted in ("/proc", "/dev", *map(str, root.folders)):  # without a layer above, the root has to have them
            (lower / mounted.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (place / "apptainer.conf").write_text(CONFIGURATION, encoding="ascii")
        start = [str(program), "--quiet", *(("--config", str(place / "apptainer.conf")) if own_configuration else ()), "exec"]
        shown = [word for folder in root.folders for word in ("--bind", f"{folder}:{folder}:ro")]
        inside = ["--no-home", "--no-mount", ",".join(NOT_MOUNTED), "--cleanenv"]
        steps = {
            "a user namespace": ["--userns", *inside],
            "a /proc and namespaces of its own": ["--userns", "--containall", *inside],
            "to be PID 1": ["--userns", "--containall", "--no-init", *inside],
            "no network": ["--userns", "--containall", "--no-init", *inside, "--net", "--network", "none"],
        }
        for what, arguments in steps.items():
            tried = _run([*start, *arguments, "--pwd", "/", *shown, str(lower), "true"], home=place)
            if tried.problem:
                cause = name_cause(tried.problem, program, scratch) + _about_setuid(what, own_configuration)
                return f"{what} is refused: {tried.problem}. {cause}"
        for folder in ("removed", "renamed"):
            (lower / "tried" / folder / "with").mkdir(parents=True)
        python = Path(os.path.realpath(sys.executable))
        layers = [*MOUNT_LAYERS, *(str(place / folder) for folder in ("root", "upper", "work", "merged"))]
        tried = _run([*layers, "true"])
        if tried.problem:
            return f"an overlay on {scratch} is refused: {tried.problem}. {name_cause(tried.problem, python, scratch)}"
        on_layers = [*layers, *start, "--userns", "--containall", "--no-init", *inside, "--pwd", "/", *shown, "--writable"]
        tried = _run([*on_layers, str(place / "merged"), "bash", "-c", CHANGE_FOLDERS], home=place)
        if tried.problem:
            what = "to remove and rename folders of an image"
            return f"{what} is refused: {tried.problem}. {name_cause(tried.problem, program, scratch)}"
    return ""


def refuse_file_system(scratch: Path, held_by: FileSystem) -> str:
    """Why layers cannot lie there; empty when they can. Overlays on NFS, Lustre or GPFS fail, or work and are slow beyond use."""
    if not held_by.is_network:
        return ""
    return f"{scratch} is on {held_by.name}, a network file system: set ROLLSTREAM_SANDBOX_SCRATCH_DIR to a disk of this node"


def _about_setuid(step: str, own_configuration: bool) -> str:
    if own_configuration or "user namespace" not in step:
        return ""
    return " (This installation is setuid and may run containers all the same; but those cannot be entered without the rights of root.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    stdout: str = ""
    problem: str = ""
    """Empty when it ended with 0."""


def _run(argv: list[str], home: Path = Path("/nonexistent")) -> _Run:
    env = {"PATH": HELPERS_PATH, "LANG": "C", "HOME": str(home)}
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRY_TIMEOUT_S, env=env, check=False)
    except OSError as error:
        return _Run(problem=f"{error.strerror}")
    except subprocess.TimeoutExpired:
        return _Run(problem=f"no answer within {TRY_TIMEOUT_S:g} s")
    said = done.stderr.decode("utf-8", "replace").strip()[-500:]
    return _Run(
        stdout=done.stdout.decode("utf-8", "replace"), problem="" if done.returncode == 0 else said or f"exit code {done.returncode}"
    )
