"""The text of what runs in the sandbox beside a program: the files of `inside`, one after the other, and a last line that begins it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

PYTHON = ("python3", "-I", "-B", "-X", "utf8", "-c")
"""`-I`: no variable of the environment and no file of the working folder has a say in what it imports."""
PYTHON_SEEDED = ("python3", "-s", "-B", "-X", "utf8", "-c")
"""For programs of ours alone, in an empty folder: with `HASH_SEED`, which `-I` would not look at."""
HASH_SEED = {"PYTHONHASHSEED": "0"}
_FIRST = "from __future__ import annotations\n"


@cache
def command(*names: str, seeded: bool = False) -> Sequence[str]:
    """The command that runs these files, in which `main` is."""
    folder = files("workers.graders.code") / "inside"
    sources = [(folder / f"{name}.py").read_text(encoding="utf-8") for name in names]
    text = _FIRST + "".join(source.replace(_FIRST, "") for source in sources) + "\nmain()\n"
    return (*(PYTHON_SEEDED if seeded else PYTHON), text)


@cache
def python_of_node() -> str:
    """The program that `python3` begins here, for sandboxes that share their files with the node; blocks, once.

    A version manager's script in its place costs a tenth of a second of a core each time, several times what most tests take.
    """
    found = shutil.which(PYTHON[0])
    if found is None:
        return PYTHON[0]
    try:
        asked = subprocess.run(
            [found, "-I", "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # what is wrong with it is seen where it runs programs
        return PYTHON[0]
    path = asked.stdout.strip()
    return path if asked.returncode == 0 and path and shutil.which(path) else PYTHON[0]
