"""A rootless Apptainer for the tests, out of Debian's packages, without a change to the system's own.

No stable Debian has it; the development branch does, built for a newer C library than the system's. So it is fetched by a private
configuration of apt together with that library, unpacked into a folder, and its two programs are pointed at the library beside them. It
finds its own configuration relative to itself. It starts containers through user namespaces: nothing of it is setuid.
"""

import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ops.launcher.logged import CommandFailed, Steps

_PACKAGES = ("apptainer", "libc6", "libseccomp2")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_CONFIGURATION = (
    (r"^sessiondir max size = .*", "sessiondir max size = 1024"),  # MiB of memory for what is not on a disk; the default, 64, is soon full
    (r"^mount hostfs = .*", "mount hostfs = no"),
)


def binary_in(place: Path) -> Path:
    """Where the program is below the folder that it was unpacked to."""
    return place / "usr/bin/apptainer"


def apptainer_version(binary: Path) -> str | None:
    """What Apptainer or Singularity calls itself, None when it does not run here."""
    try:
        asked = subprocess.run(
            [str(binary), "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    named = re.search(r"\d+(?:\.\d+)+", asked.stdout)
    return named[0] if named and asked.returncode == 0 else None


def bring_apptainer(place: Path, steps: Steps) -> None:
    """Unpack Apptainer into a folder, which is replaced by one that is complete.

    Raises:
        CommandFailed: a package could not be had, or what came does not run; the folder is as it was.
    """
    with tempfile.TemporaryDirectory(prefix=".new-apptainer-", dir=place.parent) as scratch:
        apt = _private_apt(Path(scratch, "apt"), steps)
        steps.run("apt-get", "-q", "update", env=apt)
        debs = Path(scratch, "debs")
        debs.mkdir()
        steps.run("apt-get", "-q", "download", *_PACKAGES, cwd=debs, env=apt)
        root = Path(scratch, "root")
        for deb in sorted(debs.glob("*.deb")):
            steps.run("dpkg-deb", "-x", deb, root)
        _configure(root)
        shutil.rmtree(place, ignore_errors=True)
        root.rename(place)
    _point_at_its_library(place, steps)
    if apptainer_version(binary_in(place)) is None:
        raise CommandFailed(f"{binary_in(place)} does not run here ({platform.machine()}); see {steps.log}")


def _private_apt(folder: Path, steps: Steps) -> dict[str, str]:
    """The environment of an apt that knows nothing but the development branch, of the mirror that the system's own apt uses."""
    for name in ("lists/partial", "cache/archives/partial", "parts", "preferences"):
        (folder / name).mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {debian_mirror(steps)} sid main\n", encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::Etc::preferencesparts": folder / "preferences",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # else apt becomes a user who may not enter this folder
    }
    file = folder / "apt.conf"
    file.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()), encoding="utf-8")
    return {**os.environ, "APT_CONFIG": str(file)}


def debian_mirror(steps: Steps) -> str:
    """Where this system gets Debian's packages from.

    Raises:
        CommandFailed: this is no Debian, or its lists were never fetched.
    """
    asked = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian", f"Codename: {codename()}"]
    try:
        told = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CommandFailed("there is no apt-get here: only on Debian can this be brought") from error
    steps.note(told.stdout + told.stderr)
    sites = told.stdout.split()
    if not sites:
        raise CommandFailed(f"apt has no list of Debian {codename() or '(not Debian)'}: `apt-get update` brings it")
    return sites[0]


def codename() -> str:
    """Of this Debian, such as `bookworm`; empty on another system."""
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _configure(root: Path) -> None:
    # what the programs look for beside themselves, from two places
    for link, target in (("usr/etc", "../etc"), ("usr/var", "../var"), ("usr/lib/etc", "../../etc"), ("usr/lib/var", "../../var")):
        (root / link).symlink_to(target)
    file = root / "etc/apptainer/apptainer.conf"
    text = file.read_text(encoding="utf-8")
    for pattern, line in _CONFIGURATION:
        text = re.sub(pattern, line, text, flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")
    for folder, _, names in os.walk(root):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o777 | 0o444)


def _point_at_its_library(place: Path, steps: Steps) -> None:
    """By absolute names, so only where it stays."""
    starter = next(place.glob("usr/lib/*/apptainer/bin/starter"), None)
    loader = next(place.glob("usr/lib/*/ld-linux-*.so.*"), None)
    if starter is None or loader is None:
        raise CommandFailed(f"the packages in {place} have no starter or no loader: they are laid out in a way that is not known here")
    for program in (binary_in(place), starter):
        steps.run("patchelf", "--set-interpreter", loader, "--set-rpath", loader.parent, program)
