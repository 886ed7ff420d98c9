"""`ops/launch bundle`: on a machine with a network, one file for machines without."""

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ops.launcher.bundle_file import PROJECT, WHEELS, sha256_of, write_bundle
from ops.launcher.bundle_target import DEFAULT_GLIBC, target_of
from ops.launcher.bundle_wheels import fetch_wheels, project_version, version_of
from ops.launcher.environment import RUN_EXTRAS, Environment
from ops.launcher.terminal import LiveLine, say, warn

PARTS = ("pipeline", "workers", "trainer_client", "ops", "docs", "examples")
"""Folders of the project that go along; tests stay."""
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="ops/launch bundle",
        description="Put the project and the wheels of its packages into one file, for `setup --bundle` and `node --bundle` on machines "
        "without a network. Images, models and vLLM go by themselves: docs/how-to/air-gapped.md.",
    )
    parser.add_argument("--output", type=Path, help="the file; default: rollstream-VERSION-PYTHON-MACHINE.tar in this folder")
    parser.add_argument("--python", default="", help="a Python here of the version that the other machines have; default: that of .venv")
    parser.add_argument("--machine", default="", help="theirs, as `uname -m` says: x86_64 or aarch64; default: as this one")
    parser.add_argument("--glibc", default=DEFAULT_GLIBC, help="the oldest there, as `ldd --version` says (Linux); default: %(default)s")
    parser.add_argument(
        "--extras", default="", help=f"beside {', '.join(sorted(RUN_EXTRAS))}, with commas: parquet,renderers,reasoning-gym"
    )
    return parser.parse_args(arguments)


def make(environment: Environment, asked: argparse.Namespace) -> int:
    """Makes it; the environment is complete.

    Raises:
        InstallFailed: pip could not fetch the wheels.
    """
    try:
        python = _interpreter(asked.python) if asked.python else environment.python
        target = target_of(version_of(python), machine=asked.machine, glibc=asked.glibc)
        extras = RUN_EXTRAS | {name for name in asked.extras.split(",") if name}
        version = project_version(environment.root)
        output = (asked.output or Path(f"rollstream-{version}-py{target.python}-{target.machine}.tar")).absolute()
        where = f"Python {target.python}, {target.system} on {target.machine}" + (
            f", glibc {target.glibc} or newer" if target.glibc else ""
        )
        say(f"Fetching the wheels of rollstream[{','.join(sorted(extras))}] for {where}")
        with tempfile.TemporaryDirectory(prefix=".rollstream-bundle-", dir=output.parent) as folder:
            wheels = [*fetch_wheels(environment, python, target, extras, Path(folder))]
            sources = {f"{PROJECT}/{path.relative_to(environment.root)}": path for path in _project(environment.root)}
            sources |= {f"{WHEELS}/{path.name}": path for path in wheels}
            live = LiveLine()
            manifest = write_bundle(output, sources, version=version, target=target, extras=tuple(sorted(extras)), progress=live.show)
            live.clear()
    except ValueError as error:
        warn(str(error))
        return 2
    except OSError as error:
        warn(f"{error.filename or output}: {error.strerror}. The bundle and its wheels want some 300 MB in the folder of --output")
        return 1
    say(f"{output}: {output.stat().st_size / 1e6:,.1f} MB, {len(wheels)} wheels, {len(sources) - len(wheels)} files of the project")
    say(f"sha256 {sha256_of(output)}")
    say(f"id     {manifest.id}   of manifest.json in it, which lists every file with its hash")
    say(f"There: tar -xf {output.name} {PROJECT} && {PROJECT}/ops/launch setup --bundle {output.name}")
    return 0


def _interpreter(word: str) -> Path:
    found = shutil.which(word)
    if found is None:
        raise ValueError(f"--python {word}: no such program here")
    return Path(found)


def _project(root: Path) -> Iterator[Path]:
    yield from (root / name for name in FILES if (root / name).is_file())
    for part in PARTS:
        for path in sorted((root / part).rglob("*")):
            names = path.relative_to(root).parts
            if path.is_file() and not path.is_symlink() and not any(name == "__pycache__" or name.startswith(".") for name in names):
                yield path
