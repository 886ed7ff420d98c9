"""What the scoring process does without, though the package imports it.

- matplotlib: a library behind one data set imports it to draw, and nobody draws here. It would take half of the start, and write a cache.
- pycosat, cellpylib, zss: no index has wheels of them, and pycosat wants a C compiler. Where they are not installed, `zebra_puzzles`,
  `game_of_life` and `game_of_life_halting` cannot be made, but are scored as ever; `codeio` is not taken at all.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Collection, MutableSequence
from importlib.util import find_spec
from types import ModuleType

_ALWAYS = ("matplotlib", "mpl_toolkits")
_WHERE_MISSING = ("cellpylib", "pycosat", "zss")
_NEEDED_TO_SCORE = {"codeio": "zss"}


class _LeftOut(ModuleType):
    """A module whose names can be imported, and not used."""

    __path__: MutableSequence[str] = []  # noqa: RUF012  # nothing is ever looked for in it

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> None:
            raise ImportError(f"{self.__name__}.{name} is not here: install {self.__name__.partition('.')[0]}")

        return type(name, (), {"__init__": refuse})


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are left out."""

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _LeftOut(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def leave_out() -> frozenset[str]:
    """From here on importing these gives nothing.

    Returns:
        The data sets that cannot be scored so.
    """
    missing = [name for name in _WHERE_MISSING if find_spec(name) is None]
    sys.meta_path.insert(0, _Instead((*_ALWAYS, *missing)))
    return frozenset(dataset for dataset, package in _NEEDED_TO_SCORE.items() if package in missing)
