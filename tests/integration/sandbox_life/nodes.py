"""Nodes for tests: what they are made of, and whether anything of theirs is left."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from workers.sandbox import Isolation, SandboxOwner, SandboxSpec, SandboxStartError
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.backend import Place, Walls
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import Worker
from workers.sandbox.service.settings import SandboxSettings

PLAIN = SandboxSpec(isolation=Isolation.NONE)
WORKER = Worker(boot="boot", pid=0, fleet="")


class MoodyBackend(ProcessBackend):
    """Sandboxes without walls that are not started while `broken` is set, or `failures` are left."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""
        self.failures = 0
        self.asked = 0

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        self.asked += 1
        if self.broken or self.failures > 0:
            self.failures -= 1
            raise SandboxStartError(self.name, self.broken or "it failed for a moment")
        return super().command(place, spec, image, pid1)


def moody(place: Path) -> tuple[LocalSandboxes, MoodyBackend]:
    backend = MoodyBackend()
    return LocalSandboxes(backend, scratch_dir=place / "scratch", run_dir=place / "run", node="here"), backend


def an_owner(job_id: str = "", *, attempt: int = 1) -> SandboxOwner:
    return SandboxOwner(job_id=job_id or f"run:{secrets.token_hex(4)}", attempt=attempt, boot_id="boot")


def settings(**changes: object) -> SandboxSettings:
    """Without a janitor that comes by itself, unless a test asks for it."""
    return SandboxSettings.model_validate({"janitor_s": 3600.0, **changes})


def left(place: Path) -> list[str]:
    """What a node has below its folders, beside its own files."""
    own = {"sandbox.sock", "sandbox.token", "sandbox.lock"}
    return sorted(
        path.name
        for folder in ("scratch", "run")
        if (place / folder).is_dir()
        for path in (place / folder).iterdir()
        if path.name not in own
    )


def ignored(why: str, taken: bool) -> None:
    """What a connection would be told."""
