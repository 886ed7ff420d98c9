"""Apptainer on this machine, and images small enough to be made by a test."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.sandbox_ground import HOW, apptainer_program, image_folder
from workers.sandbox import ImageMissing, Isolation, Sandbox, SandboxOwner, SandboxSpec
from workers.sandbox.apptainer import ApptainerBackend, FoundApptainer, find_apptainer
from workers.sandbox.images import ImageLease
from workers.sandbox.local import LocalSandboxes

REQUIRE_VARIABLE = "ROLLSTREAM_REQUIRE_BACKENDS"
PROGRAMS = ("bash", "cat", "ls", "mkdir", "sleep")


class StartSandbox(Protocol):
    """Starts sandboxes that end with the test."""

    async def __call__(self, image: Path | None = ..., *, backend: ApptainerBackend | None = ...) -> Sandbox: ...


class Images:
    """An image store in which a path is the name of an image."""

    def lease(self, name: str) -> ImageLease:
        if not Path(name).exists():
            raise ImageMissing(name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        return ImageLease(name=name, digest=digest, root=Path(name), env={}, workdir="", descriptor=os.open(name, os.O_RDONLY))


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> FoundApptainer:
    """Apptainer; tests are skipped, or fail where it is required, when it does not work here."""
    program = apptainer_program()
    found = find_apptainer(tmp_path_factory.mktemp("probe"), [program] if program else [])
    if found.path is None:
        is_required = "apptainer" in os.environ.get(REQUIRE_VARIABLE, "").split(",")
        (pytest.fail if is_required else pytest.skip)(f"{found.why} ({HOW})")
    return found


@pytest.fixture
def program(found: FoundApptainer) -> Path:
    assert found.path is not None
    return found.path


@pytest.fixture(scope="session")
def debian() -> Path:
    """The image of the ground: a whole small system."""
    image = image_folder()
    if image is None:
        pytest.skip(f"no image: {HOW}")
    return image


@pytest.fixture(scope="session")
def few_programs(debian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with a bash and little else: no Python, no git."""
    root = tmp_path_factory.mktemp("images") / "few"
    for name in ("bin", "lib", "lib64"):
        link = debian / name
        if link.is_symlink():
            root.mkdir(exist_ok=True)
            (root / name).symlink_to(os.readlink(link))
    libraries = {path for name in PROGRAMS for path in _libraries(debian, debian / "usr/bin" / name)}
    for path in (*(debian / "usr/bin" / name for name in PROGRAMS), *libraries):
        copy = root / path.relative_to(debian)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)  # a link is followed: the name that the loader asks for is a file here
        copy.chmod(0o755)
    return root


@pytest.fixture(scope="session")
def sif(found: FoundApptainer, few_programs: Path) -> Path:
    """The same as one file, which is mounted through FUSE."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse cannot be opened by this user")
    if shutil.which("squashfuse_ll") is None and shutil.which("squashfuse") is None:
        pytest.skip(f"no squashfuse: {HOW}")
    path = few_programs.with_name("few.sif")
    temporary = few_programs.with_name("temporary")
    temporary.mkdir()
    command = [str(found.path), "--quiet", "build", "--disable-cache", str(path), str(few_programs)]
    env = {**os.environ, "APPTAINER_TMPDIR": str(temporary)}
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
async def start(place: Path, found: FoundApptainer, program: Path, debian: Path) -> AsyncIterator[StartSandbox]:
    ours = ApptainerBackend(program, own_configuration=found.own_configuration)
    async with AsyncExitStack() as stack:
        number = 0

        async def start(image: Path | None = debian, *, backend: ApptainerBackend | None = None) -> Sandbox:
            nonlocal number
            number += 1
            sandboxes = LocalSandboxes(backend or ours, scratch_dir=place / "scratch", run_dir=place / "run", node="here", images=Images())
            provider = await stack.enter_async_context(sandboxes)
            spec = SandboxSpec(isolation=Isolation.ISOLATED, image=str(image) if image else "")
            owner = SandboxOwner(job_id=f"job{number}", attempt=1, boot_id="boot")
            return await stack.enter_async_context(await provider.start(spec, owner))

        yield start


def _libraries(root: Path, program: Path) -> list[Path]:
    """What the image's loader maps for a program, by the paths that the program asks for."""
    loader = next(root.glob("usr/lib*/ld-linux-*.so.*"))
    folders = ":".join(str(folder) for folder in root.glob("usr/lib/*-linux-gnu"))
    told = subprocess.run([loader, "--library-path", folders, "--list", program], capture_output=True, text=True, check=True).stdout
    found = [Path(word) for line in told.splitlines() for word in line.split() if word.startswith(f"{root}/") and "(" not in word]
    return [*found, loader]
