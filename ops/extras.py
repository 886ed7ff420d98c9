"""Names the extra that brings a missing package, so that a command says what to install instead of where it broke."""

import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

DISTRIBUTION = "rollstream"
OUR_PACKAGES = frozenset({"pipeline", "workers", "trainer_client", "ops"})


@contextmanager
def naming_extras() -> Iterator[None]:
    """Around everything a command does: a package that is not installed ends it with the command that installs it.

    Raises:
        SystemExit: with that text; a module of our own that is missing is a bug and passes through.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        top = (missing.name or "").partition(".")[0]
        if not top or top in OUR_PACKAGES:
            raise
        raise SystemExit(how_to_get(top, _requirements())) from missing


def how_to_get(module: str, requirements: Iterable[str]) -> str:
    """The sentence for a person whose installation lacks a module.

    Args:
        requirements: of this distribution, as its metadata lists them: `typer<0.30,>=0.29; extra == "ops"`.
    """
    match extra_that_brings(module, requirements):
        case None:
            return f"rollstream: the package {module!r} is not installed, and no extra brings it: pip install {module}"
        case "":
            return f"rollstream: the package {module!r} of the base installation is missing: pip install --force-reinstall {DISTRIBUTION}"
        case extra:
            return f"rollstream: this command needs the package {module!r}: pip install '{DISTRIBUTION}[{extra}]'"


def extra_that_brings(module: str, requirements: Iterable[str]) -> str | None:
    """The first extra that lists a package of the module's name; the empty name for the base, None when nothing lists it."""
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name and _normal(name[0]) == _normal(module):
            extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", requirement)
            return extra[1] if extra else ""
    return None


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # the sources alone, on the import path
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
