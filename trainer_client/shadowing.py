"""Finds a file beside the training script that hides one of our packages, and says which file it is and what to do.

Python puts the folder of the script first on its path, and `pipeline.py`, `workers.py` or `ops/` are names that a training project may well
have. Without this check the first sign is an ImportError deep in our code that names neither file. Nothing but the standard library is used
here, as this runs before anything else of ours is imported.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("pipeline", "trainer_client")
"""Packages that a training process imports: hidden, nothing works."""
BESIDE = ("workers", "ops")
"""Packages of the other processes: hidden, only code that starts those from here breaks."""


class ShadowedPackage(ImportError):
    """A package that we need is hidden by another file of that name."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A file that is found in the place of one of our packages."""

    name: str
    found: Path
    ours: Path

    def __str__(self) -> str:
        return (
            f"{self.found} hides Rollstream's package {self.name!r} ({self.ours}): start Python with -P (`python -P train.py`, or "
            "PYTHONSAFEPATH=1), which keeps the script's folder off the import path, or rename that file"
        )


def find_shadow(name: str, home: Path) -> Shadow | None:
    """The file that `import name` brings in place of ours; None when it brings ours, or nothing.

    Args:
        name: one of our packages.
        home: the folder that holds our packages.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", [])), None)
    else:
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None else None
    ours = home / name
    if origin is None or Path(origin).resolve() in (ours.resolve(), (ours / "__init__.py").resolve()):
        return None
    return Shadow(name, Path(origin), ours)


def refuse_shadows(home: Path) -> None:
    """Checks all our packages.

    Raises:
        ShadowedPackage: one that a training process needs is hidden; for the others there is a warning.
    """
    for name in NEEDED:
        shadow = find_shadow(name, home)
        if shadow is not None:
            raise ShadowedPackage(str(shadow), name=name, path=str(shadow.found))
    for name in BESIDE:
        shadow = find_shadow(name, home)
        if shadow is not None:
            warnings.warn(f"{shadow} (training is not affected; starting workers from this script is)", ImportWarning, stacklevel=3)
