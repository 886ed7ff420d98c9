"""The text of what runs in the sandbox beside a program: the files of `inside`, one after the other, and a last line that begins it."""

from __future__ import annotations

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
