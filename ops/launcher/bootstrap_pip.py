"""Brings pip into an environment whose Python came without it.

Three ways, in order: it is there; the standard library's `ensurepip` has it (no network); its own wheel from the configured
index. Debian and Ubuntu keep `ensurepip` in a package of its own, python3-venv, which takes root to install: the wheel does not.
A wheel of pip runs from the zip as it is, so it installs itself.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ops.launcher.package_index import IndexFile, IndexUnusable, fetch, list_files, newest_wheel, read_settings, shown
from ops.launcher.terminal import say


def pip_environ() -> dict[str, str]:
    """Our environment for pip, without what would make it install elsewhere, ask questions or draw bars."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_NO_BINARY", "PIP_ONLY_BINARY"}
    settings = {"PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {name: value for name, value in os.environ.items() if name not in dropped} | settings


def ensure_pip(python: Path) -> None:
    """Make `python -m pip` work.

    Raises:
        IndexUnusable: there is no pip, no ensurepip, and the index gave none.
    """
    if _works(python, "-m", "pip", "--version"):
        return
    if _works(python, "-m", "ensurepip", "--default-pip") and _works(python, "-m", "pip", "--version"):
        return
    settings = read_settings(os.environ)
    wheel = newest_wheel(list_files(settings, "pip"), sys.version_info[:3])
    if wheel is None:
        raise IndexUnusable(f"no wheel of pip for Python {sys.version.split()[0]} in the configured index")
    say(f"  this Python has no pip: taking {wheel.name} from {shown(wheel.url)}{_how_checked(wheel)}")
    with tempfile.TemporaryDirectory(prefix="rollstream-pip-") as folder:
        path = fetch(settings, wheel, Path(folder))
        command = [str(python), "-I", str(path / "pip"), "install", "--quiet", "--no-index", "--no-deps", str(path)]
        done = subprocess.run(command, env=pip_environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise IndexUnusable(f"{wheel.name} did not install itself:\n{done.stdout}{done.stderr}")


def _how_checked(wheel: IndexFile) -> str:
    return ", sha256 checked" if wheel.sha256 else " (that source gives no checksum)"


def _works(python: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> bool:
    command = [str(python), "-I", *arguments]
    return subprocess.run(command, env=environ or pip_environ(), stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
