"""Every kind of provider that passes the contract: how one is opened, what it is asked for, and why it cannot be had here.

A new kind is one entry of `KINDS`; all tests of this folder run on it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.sandbox_ground import HOW, apptainer_program, image_folder
from workers.sandbox import ImageMissing, Isolation, SandboxProvider, SandboxSpec
from workers.sandbox.apptainer import ApptainerBackend, FoundApptainer, find_apptainer
from workers.sandbox.bubblewrap import BubblewrapBackend, find_bwrap
from workers.sandbox.images import ImageLease
from workers.sandbox.local import Backend, Entry, LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import RemoteSandboxes, serving_here

IMAGE = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of provider."""

    open: Callable[[Path], SandboxProvider]
    """Given a folder of the test's own, with a short path."""
    spec: SandboxSpec
    """What tests ask for when they do not care."""
    walls: bool = False
    why_not: Callable[[], str] = lambda: ""
    """Why it does not work here; empty when it does."""
    core: tuple[str, ...] = ()
    """Files whose quick tests run on it; all tests run where `REQUIRE_VARIABLE` names it. Empty = all tests, always."""


class OneImage:
    """An image store with one image, the folder that the ground of the tests has."""

    def lease(self, name: str) -> ImageLease:
        folder = image_folder()
        if name != IMAGE or folder is None:
            raise ImageMissing(name)
        digest = hashlib.sha256(str(folder).encode()).hexdigest()
        return ImageLease(name=name, digest=digest, root=folder, env={}, workdir="", descriptor=os.open(folder, os.O_RDONLY))


def process(folder: Path) -> SandboxProvider:
    return LocalSandboxes(ProcessBackend(), scratch_dir=folder / "scratch", run_dir=folder / "run", node="here")


def bubblewrap(folder: Path, entry: Entry = "outside") -> LocalSandboxes:
    bwrap = _bwrap()[0]
    assert bwrap is not None
    return _local(BubblewrapBackend(bwrap), folder, entry)


def apptainer(folder: Path, entry: Entry = "outside") -> LocalSandboxes:
    found = _apptainer()
    assert found.path is not None
    return _local(ApptainerBackend(found.path, own_configuration=found.own_configuration), folder, entry)


def _local(backend: Backend, folder: Path, entry: Entry) -> LocalSandboxes:
    scratch, run = folder / "scratch", folder / "run"
    return LocalSandboxes(backend, scratch_dir=scratch, run_dir=run, node="here", images=OneImage(), entry=entry)


class Served(RemoteSandboxes):
    """The sandboxes of a local provider over the wire: a service of its own, and a client of it, which takes the service along."""

    def __init__(self, local: LocalSandboxes, run_dir: Path) -> None:
        super().__init__(run_dir, boot="boot")
        self._local = local
        self._serving = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._serving.enter_async_context(serving_here(self._local, self.run_dir))
        return await super().__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        async with self._serving:
            await super().__aexit__(kind, error, trace)


def service(folder: Path) -> SandboxProvider:
    return Served(bubblewrap(folder), folder / "service")


def no_image() -> str:
    return "" if image_folder() is not None else f"no image: {HOW}"


def no_bubblewrap() -> str:
    return _bwrap()[1] or no_image()


def no_apptainer() -> str:
    return _apptainer().why or no_image()


def program_of(name: str) -> tuple[str, ...]:
    """The program that builds the walls of a local kind, for a process that is not to try it again; nothing without walls."""
    path = {"bubblewrap": lambda: _bwrap()[0], "apptainer": lambda: _apptainer().path}.get(name, lambda: None)()
    return () if path is None else (str(path),)


@cache
def _apptainer() -> FoundApptainer:
    program = apptainer_program()
    with tempfile.TemporaryDirectory() as scratch:
        return find_apptainer(Path(scratch), [program] if program else [])


@cache
def _bwrap() -> tuple[Path | None, str]:
    with tempfile.TemporaryDirectory() as scratch:
        found = find_bwrap(Path(scratch))
    return found.path, found.why


STARTS_INSIDE = ("test_exec", "test_files", "test_walls")
"""Where it matters who starts processes and works on files: the rest is what the same backend is asked for from outside."""
THROUGH_THE_WIRE = ("test_exec", "test_files", "test_kernel", "test_life", "test_notices", "test_snapshots")
"""What differs when calls, results and archives travel; tools and walls know nothing of it, and a shell is asked as a command is."""
WALLED = SandboxSpec(isolation=Isolation.ISOLATED, image=IMAGE)

KINDS: dict[str, Kind] = {
    "process": Kind(open=process, spec=SandboxSpec(isolation=Isolation.NONE)),
    "bubblewrap": Kind(open=bubblewrap, spec=WALLED, walls=True, why_not=no_bubblewrap),
    "apptainer": Kind(open=apptainer, spec=WALLED, walls=True, why_not=no_apptainer),
    "bubblewrap-inside": Kind(open=partial(bubblewrap, entry="inside"), spec=WALLED, walls=True, why_not=no_bubblewrap, core=STARTS_INSIDE),
    "apptainer-inside": Kind(
        open=partial(apptainer, entry="inside"), spec=WALLED, walls=True, why_not=no_apptainer, core=("test_devices",)
    ),
    "service": Kind(open=service, spec=WALLED, walls=True, why_not=no_bubblewrap, core=THROUGH_THE_WIRE),
}

LOCAL_KINDS = ("process", "bubblewrap", "apptainer")
"""Those whose sandboxes this very process owns."""
REQUIRE_VARIABLE = "ROLLSTREAM_REQUIRE_BACKENDS"


def required() -> set[str]:
    """Kinds that must work here."""
    names = set(filter(None, os.environ.get(REQUIRE_VARIABLE, "").split(",")))
    if unknown := names - KINDS.keys():
        raise pytest.UsageError(f"{REQUIRE_VARIABLE} asks for {', '.join(sorted(unknown))}, which is not among the backends")
    return names


def usable(name: str) -> Kind:
    """The kind; skips the test where it does not work, or fails it where it must."""
    kind = KINDS[name]
    why = kind.why_not()
    if why:
        (pytest.fail if name in required() else pytest.skip)(f"{name}: {why}")
    return kind
