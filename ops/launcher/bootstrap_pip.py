"""Brings pip into an environment whose Python came without it.

Three ways, in order: it is there; the standard library's `ensurepip` has it (no network); its own wheel from the configured
index. Debian and Ubuntu keep `ensurepip` in a package of its own, python3-venv, which takes root to install: the wheel does not.
A wheel of pip runs from the zip as it is, so it installs itself.
"""

import os
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from ops.launcher.package_index import IndexUnusable, fetch, list_files, newest_wheel, read_settings
from ops.launcher.terminal import say


def pip_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for pip: ours without what would make it install elsewhere, ask questions or draw bars."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_NO_BINARY", "PIP_ONLY_BINARY"}
    settings = {"PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {name: value for name, value in environ.items() if name not in dropped} | settings


def ensure_pip(python: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Make `python -m pip` work, with the settings for pip that an environment holds.

    Raises:
        IndexUnusable: there is no pip, no ensurepip, and the index gave none.
    """
    for_pip = pip_environ(environ)
    if _works(for_pip, python, "-m", "pip", "--version"):
        return
    if _works(for_pip, python, "-m", "ensurepip", "--default-pip") and _works(for_pip, python, "-m", "pip", "--version"):
        return
    settings = read_settings(environ)
    wheel = newest_wheel(list_files(settings, "pip"), sys.version_info[:3])
    if wheel is None:
        raise IndexUnusable(f"no wheel of pip for Python {sys.version.split()[0]} in the configured index")
    source = urllib.parse.urlsplit(wheel.url).hostname or "this disk"
    say(f"  this Python has no pip: taking {wheel.name} from {source}{', sha256 checked' if wheel.sha256 else ' (it gives no checksum)'}")
    with tempfile.TemporaryDirectory(prefix="rollstream-pip-") as folder:
        path = fetch(settings, wheel, Path(folder))
        command = [str(python), "-I", str(path / "pip"), "install", "--quiet", "--no-index", "--no-deps", str(path)]
        done = subprocess.run(command, env=for_pip, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise IndexUnusable(f"{wheel.name} did not install itself:\n{done.stdout}{done.stderr}")


def _works(environ: Mapping[str, str], python: Path, *arguments: str) -> bool:
    command = [str(python), "-I", *arguments]
    return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
