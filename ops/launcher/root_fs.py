"""A small Debian as a folder, the image that sandboxes of the tests are made of: bash, git, procps, a Python and IPython's kernel.

It belongs to the user who runs the tests, every file of it, as a rootless container needs: a file of somebody else's could not be changed
in it, not even in a layer above.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

from ops.launcher.apptainer import codename, debian_mirror
from ops.launcher.bootstrap_pip import pip_environ
from ops.launcher.logged import CommandFailed, Steps
from ops.launcher.system_packages import as_root

_PACKAGES = "python3,procps,git"
_WHEELS = ("ipykernel",)
_RECIPE = 1
"""Raised when what this file makes is another thing: images made before are then made anew."""


def root_fs_note(place: Path) -> dict[str, object]:
    """What was written down when the image was complete; empty when it is not there, half made, or of another recipe."""
    try:
        note = json.loads(_note_of(place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) and note.get("recipe") == _RECIPE and (place / "usr/bin/python3").exists() else {}


def bring_root_fs(place: Path, python: Path, owner: tuple[int, int], steps: Steps) -> None:
    """Make the image, from this Debian's own release.

    Args:
        python: has pip, which brings the kernel.
        owner: uid and gid.

    Raises:
        CommandFailed: a step ended with an error; nothing is left of it.
    """
    suite = codename()
    mirror = debian_mirror(steps)
    debootstrap = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if debootstrap is None:
        raise CommandFailed("there is no debootstrap here")
    scratch = Path(tempfile.mkdtemp(prefix=".new-rootfs-", dir=place.parent))
    draft = scratch / "rootfs"
    try:
        steps.run(*as_root(debootstrap, "--variant=minbase", f"--include={_PACKAGES}", suite, draft, mirror))
        steps.run(*as_root("chown", "--recursive", "--no-dereference", f"{os.geteuid()}:{os.getegid()}", draft))
        version = _add_wheels(draft, python, steps)
        for left_over in ("var/cache/apt/archives", "var/lib/apt/lists", "dev", "debootstrap"):
            _remove(draft / left_over, steps)
        steps.run(*as_root("mkdir", draft / "dev"))  # devices cannot be a user's own; a sandbox brings its own
        steps.run(*as_root("chown", "--recursive", "--no-dereference", f"{owner[0]}:{owner[1]}", draft))
        steps.run(*as_root("chmod", "--recursive", "u+rwX", draft))
        _note_of(place).unlink(missing_ok=True)
        _remove(place, steps)
        draft.rename(place)
        _note_of(place).write_text(json.dumps({"recipe": _RECIPE, "suite": suite, "python": version, "owner": owner[0]}), encoding="utf-8")
    finally:
        _remove(scratch, steps)


def _add_wheels(root: Path, python: Path, steps: Steps) -> str:
    """The kernel, for the image's own Python; returns that one's version."""
    library = next(iter(root.glob("usr/lib/python3.*")), None)
    if library is None:
        raise CommandFailed(f"the packages of {root} brought no Python")
    version = library.name.removeprefix("python")
    packages = root / "usr/local/lib" / library.name / "dist-packages"
    chosen = ["--python-version", version, "--only-binary", ":all:", "--no-compile", "--disable-pip-version-check"]
    steps.run(python, "-I", "-m", "pip", "install", "--target", packages, *chosen, *_WHEELS, env=pip_environ())
    # by its own Python, once: else each sandbox compiles it anew into a layer of its own
    steps.run(*as_root("chroot", root, "python3", "-m", "compileall", "-q", "/usr/local/lib", "/usr/lib/python3"))
    return version


def _remove(path: Path, steps: Steps) -> None:
    steps.run(*as_root("rm", "-rf", "--one-file-system", path))


def _note_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")
