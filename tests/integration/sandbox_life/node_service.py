"""A node's service, to be killed: what a process of `nursery.py` becomes.

Its walls are built by a program that the test has tried, so the failpoints of this process are passed by sandboxes of workers alone. A path
is the name of an image here. The janitor makes its rounds every half second, so that a test need not wait for a minute.

With a gate, every start stops at a place in the middle of it until the test lets it go on: at `command`, where the command of the backend
is about to run, or at `pid1`, where the walls stand and PID 1 has not said so. The file `reached` in the gate's folder says that it is
there; it goes on when the pipe `go` there is opened for writing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.testing.wait import wait_until
from workers.sandbox import ImageMissing, Isolation, Probe, SandboxSpec
from workers.sandbox.apptainer import ApptainerBackend
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.images import ImageLease
from workers.sandbox.local.backend import SOCKETS_INSIDE, Backend, Place, Walls
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service.server import SOCKET_NAME
from workers.sandbox.service.serving import serve_sandboxes
from workers.sandbox.service.settings import SandboxSettings

JANITOR_S = 0.5
AT_GATE = ': >"$1/reached"; read -r _ <"$1/go"; shift; exec "$@"'
"""A shell script: FOLDER COMMAND..."""


class GatedBackend:
    """A backend whose starts stop in the middle."""

    def __init__(self, backend: Backend, place: str, folder: Path) -> None:
        self._backend = backend
        self._place = place
        self._folder = folder
        self.name = backend.name
        self.isolation = backend.isolation
        self.network = backend.network

    def refuse(self, spec: SandboxSpec) -> str:
        return self._backend.refuse(spec)

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        if self._place == "pid1":  # in the one folder that is the same inside and outside, and can be written to
            (place.sockets / "go").hardlink_to(self._folder / "go")
            self._folder.joinpath("reached").symlink_to(place.sockets / "reached")
            pid1 = ["bash", "-c", AT_GATE, "gate", SOCKETS_INSIDE, *pid1]
        walls = self._backend.command(place, spec, image, pid1)
        if walls is not None and self._place == "command":
            walls = replace(walls, argv=("/bin/bash", "-c", AT_GATE, "gate", str(self._folder), *walls.argv))
        return walls


class Images:
    """An image store in which a path is the name of an image."""

    def lease(self, name: str) -> ImageLease:
        if not Path(name).exists():
            raise ImageMissing(name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        return ImageLease(name=name, digest=digest, root=Path(name), env={}, workdir="", descriptor=os.open(name, os.O_RDONLY))


def backend_of(name: str, program: Path) -> Backend:
    if name == "bubblewrap":
        return BubblewrapBackend(program)
    return ApptainerBackend(program) if name == "apptainer" else ProcessBackend()


async def serve(place: Path, name: str, program: str, gate: str, say: Callable[[str], None]) -> None:
    """Serves below a place until SIGTERM; says `ready` when it does.

    Args:
        name, program: of the backend.
        gate: PLACE:FOLDER, or empty.
    """
    scratch, run = place / "s", place / "run"
    backend = backend_of(name, Path(program))
    if gate:
        where, _, folder = gate.partition(":")
        backend = GatedBackend(backend, where, Path(folder))
    stop, hurry = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = SandboxSettings(backend=name, run_dir=run, scratch_dir=scratch, grace_s=0.0, janitor_s=JANITOR_S)
    (run / SOCKET_NAME).unlink(missing_ok=True)
    telling = asyncio.create_task(tell(run, say))
    isolation = frozenset({Isolation.NONE}) if name == "process" else backend.isolation
    probe = Probe(backend=name, works=True, isolation=isolation, why="")
    await serve_sandboxes(settings, backend, probe, node="here", stop=stop, hurry=hurry, images=Images())
    await telling


async def tell(run: Path, say: Callable[[str], None]) -> None:
    await wait_until((run / SOCKET_NAME).exists, "it serves", timeout_s=60)
    say("ready")
