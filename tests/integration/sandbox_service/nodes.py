"""Providers whose starts stop at a step until the test lets them go on, and who holds what."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from pipeline.testing.wait import wait_until
from workers.sandbox import SandboxSpec
from workers.sandbox.images import ImageLease
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.backend import Place, Walls
from workers.sandbox.process import ProcessBackend
from workers.sandbox.spec import Isolation

PLAIN = SandboxSpec(isolation=Isolation.NONE)
WITH_IMAGE = SandboxSpec(isolation=Isolation.NONE, image="any")
PATIENCE_S = 30.0


class Gate:
    """A step that threads stop at."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.arrived = 0
        self._opened = threading.Event()
        if is_open:
            self._opened.set()

    def pass_through(self) -> None:
        """Called in a thread; returns when the gate is open."""
        self.arrived += 1
        assert self._opened.wait(PATIENCE_S), "nobody opened the gate"

    def open(self) -> None:
        self._opened.set()

    async def reached(self, times: int = 1) -> None:
        await wait_until(lambda: self.arrived >= times, f"{times} stand at the gate")


class GatedProvider(ProcessBackend):
    """Bare processes in two steps: images are asked for after a start has looked for earlier attempts and before it has a folder; the
    command, when it has looked again and its holder runs."""

    def __init__(self, *, at_image: Gate | None = None, at_command: Gate | None = None) -> None:
        super().__init__()
        self.at_image = at_image or Gate(is_open=True)
        self.at_command = at_command or Gate(is_open=True)

    def refuse(self, spec: SandboxSpec) -> str:
        return ""

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        self.at_command.pass_through()
        return None

    def lease(self, name: str) -> ImageLease:
        """As an image store: any name is an empty image."""
        self.at_image.pass_through()
        return ImageLease(name=name, digest="0" * 64, root=Path("/"), env={}, workdir="", descriptor=os.open("/", os.O_RDONLY))


def node_of(place: Path, backend: ProcessBackend | None = None) -> LocalSandboxes:
    """A provider in a folder of a test. Several may share it."""
    backend = backend or ProcessBackend()
    images = backend if isinstance(backend, GatedProvider) else None
    return LocalSandboxes(backend, scratch_dir=place / "scratch", run_dir=place / "run", node="here", images=images)
