"""The areas whose cases this project runs: one module each, with a function `area` that opens what its cases share.

An area is offered when its module is here; `NAMES` is the order they are listed in.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

from tests.cases.case import Area

NAMES = ("redis", "math", "dapo", "tokens", "toolcalls", "shell", "ipython", "code", "swe")
"""All areas that case files are written for."""


def offered() -> tuple[str, ...]:
    """The areas that can be run."""
    return tuple(name for name in NAMES if Path(__file__).with_name(f"{name}.py").is_file())


def load(name: str) -> Area:
    """The area called `name`.

    Raises:
        LookupError: it is not offered.
    """
    if name not in offered():
        raise LookupError(f"no area {name!r}; there are: {', '.join(offered())}")
    return cast(Area, import_module(f"tests.cases.areas.{name}").area)
