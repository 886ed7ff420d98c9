"""Prometheus's own checker of rules, for the tests of alerts: found on the PATH, or taken out of Debian's package.

The package would start a server and is 96 MB with its web pages; only this one program of it is kept, in `.venv/tools`. Tests are told:

    ROLLSTREAM_TEST_PROMTOOL      the program
    ROLLSTREAM_REQUIRE_PROMTOOL   set: its absence is a failure, not a skip
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ops.launcher.environment import Environment
from ops.launcher.legs import Leg, version_said
from ops.launcher.logged import CommandFailed, Steps
from ops.launcher.system_packages import as_root
from ops.launcher.terminal import say

_INSIDE = "usr/bin/promtool"
_PACKAGE = "prometheus"


def promtool_version(binary: Path) -> str | None:
    """What it calls itself, None when it does not run here."""
    return version_said(binary, r"^promtool, version (\d+(?:\.\d+)+)")


def find_promtool(environment: Environment, environ: Mapping[str, str]) -> Leg:
    """The one that a person names, else the system's, else ours."""
    named = environ.get("ROLLSTREAM_TEST_PROMTOOL")
    on_path = shutil.which("promtool", path=environ.get("PATH"))
    candidates = [Path(named)] if named else [*([Path(on_path)] if on_path else []), _own(environment)]
    for path in candidates:
        version = promtool_version(path)
        if version:
            return Leg(name="promtool", path=path, version=version)
    why = f"{named} (from ROLLSTREAM_TEST_PROMTOOL) does not answer --version" if named else "no promtool on this system"
    by_apt = shutil.which("apt-get") is not None and not named
    own = "ROLLSTREAM_TEST_PROMTOOL=/path/to/promtool ./ops/launch test"
    return Leg(name="promtool", why_missing=why, how_to_enable="./ops/launch test --system-packages" if by_apt else own)


def bring_promtool(environment: Environment) -> None:
    """Take it out of the package, once; when that cannot be had this is said, and the leg stays out."""
    with environment.lock() as held:
        place = _own(environment)
        if promtool_version(place):
            return
        place.parent.mkdir(exist_ok=True)
        say("Fetching promtool for the tests of alerts, out of Debian's package prometheus (19 MB)")
        steps = Steps(log=place.parent / "setup.log", keep_open=(held,))
        try:
            with tempfile.TemporaryDirectory(prefix=".new-promtool-", dir=place.parent) as scratch:
                steps.run(*as_root("apt-get", "-q", "update"))
                steps.run("apt-get", "-q", "download", _PACKAGE, cwd=Path(scratch))
                take_program(next(Path(scratch).glob("*.deb")), place, steps)
        except CommandFailed as failure:
            say(f"  going on without it: {failure}")


def take_program(package: Path, place: Path, steps: Steps) -> None:
    """Put the program of a package where it belongs, whole or not at all.

    Raises:
        CommandFailed: the package has none.
    """
    root = package.parent / "root"
    steps.run("dpkg-deb", "-x", package, root)
    if not (root / _INSIDE).is_file():
        raise CommandFailed(f"{package.name} has no {_INSIDE}: it is laid out in a way that is not known here")
    (root / _INSIDE).replace(place)


def for_pytest(leg: Leg, *, is_required: bool) -> dict[str, str]:
    """The variables that tell pytest."""
    found = {"ROLLSTREAM_TEST_PROMTOOL": str(leg.path)} if leg.path else {}
    return found | ({"ROLLSTREAM_REQUIRE_PROMTOOL": "1"} if is_required else {})


def _own(environment: Environment) -> Path:
    return environment.folder / "tools" / "promtool"
