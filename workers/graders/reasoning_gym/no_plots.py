"""Keeps matplotlib out of the scoring process: a library behind one data set imports it to draw, and nobody draws here. It would take half
of the start, and write a cache of fonts."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import MutableSequence
from types import ModuleType

_NAMES = ("matplotlib", "mpl_toolkits")


class _Nothing(ModuleType):
    """A module whose names mean nothing."""

    __path__: MutableSequence[str] = []  # noqa: RUF012  # nothing is ever looked for in it

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in _NAMES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def leave_out_plots() -> None:
    """From here on `import matplotlib` gives nothing."""
    sys.meta_path.insert(0, _Instead())
