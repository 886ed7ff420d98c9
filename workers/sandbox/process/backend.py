"""The backend `process`: sandboxes without walls, for development and for code one trusts.

What runs here has the worker's user, its files and its network. What holds all the same: it gets nothing of the worker's environment, it
ends with its attachment, and its limits are those of its spec. Specs that need isolation are refused, unless the node's owner has
said that untrusted code may run without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workers.sandbox.local.backend import Place, Walls
from workers.sandbox.spec import Isolation, SandboxSpec


class ProcessBackend:
    """Bare processes in a folder.

    Args:
        accept_untrusted: serve specs that ask for isolation although there is none. For development.
    """

    name = "process"
    isolation = frozenset({Isolation.NONE})
    network = None

    def __init__(self, *, accept_untrusted: bool = False) -> None:
        self._accept_untrusted = accept_untrusted

    def refuse(self, spec: SandboxSpec) -> str:
        if spec.isolation is not Isolation.NONE and not self._accept_untrusted:
            wanted = spec.isolation.value
            return f"the task asks for isolation {wanted!r}, which this backend has not: use another, or accept_untrusted"
        if spec.image:
            return f"the task asks for image {spec.image!r} and this backend has none: use another"
        return ""

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        return None
