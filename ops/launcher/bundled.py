"""What a machine does with a bundle: unpacks it once on its own disk, and installs from there.

    SCRATCH/bundles/<id>.lock      held while it is unpacked
    SCRATCH/bundles/<id>.part/     what is unpacked just now, or was when somebody was killed
    SCRATCH/bundles/<id>/          a bundle, whole: the rename says so; rollstream/.venv in it is the environment of its nodes

Invariants:

- A file system that machines share is read once a machine: the bundle from its beginning to its end, by one launcher of all that start.
- Nothing asks a network: pip gets the wheels of the bundle, no index and no configuration of anybody.
- The folder is ours alone: packages are run from it.
"""

import fcntl
import os
import shutil
import stat
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from ops.launcher import child
from ops.launcher.bundle_file import PROJECT, WHEELS, BundleUnusable, Manifest, read_manifest, unpack
from ops.launcher.environment import RUN_EXTRAS, Environment
from ops.launcher.installs import InstallFailed
from ops.launcher.terminal import LiveLine, say

LAUNCHER = Path("ops", "launcher", "__main__.py")
_INDEX_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_REQUIREMENT", "PIP_PROXY")


def taken_out(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The bundle that `--bundle` names, and the other arguments.

    Raises:
        ValueError: no file follows it.
    """
    rest, found = [*arguments], None
    ends = rest.index("--") if "--" in rest else len(rest)
    for place, word in enumerate(rest[:ends]):
        if word.startswith("--bundle="):
            found, rest[place : place + 1] = word.removeprefix("--bundle="), []
            break
        if word == "--bundle":
            if place + 1 >= ends:
                raise ValueError("--bundle FILE: the file that `./ops/launch bundle` made")
            found, rest[place : place + 2] = rest[place + 1], []
            break
    return (Path(found).expanduser().absolute() if found else None), rest


def manifest_for_here(bundle: Path, argv: Sequence[str]) -> Manifest:
    """What a bundle has, if it serves here. Where this Python is another and the right one on the PATH, that goes on,
    unless a person named this one.

    Raises:
        BundleUnusable: it is none, or for another kind of machine.
    """
    try:
        manifest = read_manifest(bundle)
    except OSError as error:
        raise BundleUnusable(f"{bundle}: {error.strerror}") from error
    if why := manifest.target.refusal():
        right = shutil.which(f"python{manifest.target.python}")
        is_other_python = manifest.target.python != f"{sys.version_info[0]}.{sys.version_info[1]}"
        if right is not None and is_other_python and not os.environ.get("ROLLSTREAM_PYTHON"):
            os.execv(right, [right, "-I", str(Path(__file__).with_name("__main__.py")), *argv])
        raise BundleUnusable(f"{bundle} does not serve here: {why}")
    return manifest


def unpacked_once(bundle: Path, manifest: Manifest) -> Path:
    """The folder of a bundle on this machine; unpacked now, if nobody has.

    Raises:
        BundleUnusable: it is damaged, or there is no room.
    """
    if bundle.is_dir():
        return bundle
    folder = _private(_private(scratch_folder(os.environ)) / "bundles")
    home = folder / manifest.id[:16]
    if home.exists():
        return home
    with (folder / f"{home.name}.lock").open("w") as lock:
        _lock(lock.fileno(), f"  another launch unpacks {bundle.name}: waiting for it")
        if home.exists():
            return home
        part = folder / f"{home.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        live = LiveLine()
        try:
            unpack(bundle, part, live.show)
        except OSError as error:
            raise BundleUnusable(
                f"{bundle} cannot be unpacked to {part}: {error.strerror}. It takes {manifest.size / 1e6:,.0f} MB there, and "
                "its environment some 500 MB more; ROLLSTREAM_SCRATCH_DIR names another folder"
            ) from error
        finally:
            took_s = live.clear()
        part.rename(home)  # what is left of a failure is the next one's to remove
    say(f"Unpacked {bundle.name} ({len(manifest.files)} files, {manifest.size / 1e6:,.0f} MB) to {home} in {took_s:.0f} s")
    return home


def take_wheels_from(home: Path, environ: MutableMapping[str, str]) -> None:
    """Makes pip, and what starts it, install from a bundle and ask nobody."""
    for name in _INDEX_SETTINGS:
        environ.pop(name, None)
    environ.update({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(home / WHEELS), "PIP_CONFIG_FILE": os.devnull})


def refuse_other_project(home: Path, root: Path) -> None:
    """The packages of a bundle are those of its project.

    Raises:
        BundleUnusable: the project in `root` asks for others.
    """
    if (home / PROJECT / "pyproject.toml").read_bytes() != (root / "pyproject.toml").read_bytes():
        raise BundleUnusable(
            f"the bundle has the packages of another version of the project than {root}: take the project that is in it "
            f"(tar -xf BUNDLE {PROJECT}), or make the bundle anew"
        )


def ready_environment(bundle: Path, argv: Sequence[str]) -> Environment:
    """The environment of a bundle on this machine, made now if nobody has.

    Raises:
        BundleUnusable: see `manifest_for_here` and `unpacked_once`.
        InstallFailed: it could not be made; what was said about it stands above.
    """
    manifest = manifest_for_here(bundle, argv)
    home = unpacked_once(bundle, manifest)
    environment = Environment(home / PROJECT)
    # its own launcher makes it, as on any machine: under a lock, complete or not ready
    setup: list[str | Path] = [sys.executable, "-I", environment.root / LAUNCHER, "setup", "--bundle", home]
    if not environment.is_ready(RUN_EXTRAS | {*manifest.extras}) and child.run(setup):
        raise InstallFailed(f"the environment in {environment.folder} could not be made")
    return environment


def scratch_folder(environ: MutableMapping[str, str]) -> Path:
    """As `pipeline/folders.py` has it, which needs packages."""
    if set_folder := environ.get("ROLLSTREAM_SCRATCH_DIR"):
        return Path(set_folder).expanduser()
    named = [Path(environ.get(name, "")) for name in ("SLURM_TMPDIR", "TMPDIR")]
    return next((path for path in named if path.is_absolute()), Path("/tmp")) / f"rollstream-scratch-{os.getuid()}"


def _private(path: Path) -> Path:
    """Makes a folder that only we may enter; one that exists must be so.

    Raises:
        BundleUnusable: others may enter, or it is theirs: they could change what we run.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise BundleUnusable(f"{path} must be yours alone (chmod 700): ROLLSTREAM_SCRATCH_DIR names another")
    return path


def _lock(descriptor: int, waiting: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(waiting)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
