"""One thing that tests run on and that may be missing here: a server, an unprivileged user, a container runtime, an image."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """Found or not, and then how to get it."""

    name: str
    path: Path | None = None
    """Where it is; None when it is missing."""
    version: str = ""
    why_missing: str = ""
    how_to_enable: str = ""
    packages: tuple[str, ...] = ()
    """Debian packages that bring it, or that it is made with; asked for only with `--system-packages`."""
