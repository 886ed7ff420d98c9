"""What this machine lets its processes do. Each check is told what it looks at, so that a test can show it another machine."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from ops.doctor.finding import Finding, fail, note, ok, warn
from pipeline.folders import MAX_SOCKET_PATH_BYTES, FolderError, Folders, probe_folder
from pipeline.logs import redact_text

LEAST_FILES = 4096
"""Open files a process: a RUN worker of 256 slots has some connections a job."""
LEAST_PROCESSES = 4096
"""Processes of this user: sandboxes of all its workers count together."""
LEAST_PTYS = 256
LEAST_INOTIFY = 8192
LOW_DISK_BYTES = 5 << 30
ROOM_FOR_SOCKET = 40
PACKAGES = ("redis", "msgpack", "numpy", "pydantic", "aiohttp", "typer")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


def versions() -> Iterator[Finding]:
    """Python and packages."""
    python = platform.python_version()
    yield ok("versions.python", f"Python {python} on {platform.system()} {platform.release()} ({platform.machine()})")
    found = []
    for name in ("rollstream", *PACKAGES):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} missing")
    missing = [words for words in found if words.endswith("missing")]
    if missing:
        yield note("versions.packages", ", ".join(found), "what is missing belongs to roles that this environment was not made for")
    else:
        yield ok("versions.packages", ", ".join(found))


def limits(files: tuple[int, int], processes: tuple[int, int]) -> Iterator[Finding]:
    """Open files and processes.

    Args:
        files, processes: soft and hard limit; -1 = none.
    """
    soft, hard = files
    if 0 <= soft < LEAST_FILES:
        enough = hard < 0 or hard >= LEAST_FILES
        do = f"ulimit -n {LEAST_FILES} before workers start" if enough else "have the administrator raise nofile in limits.conf or the unit"
        yield warn("limits.files", f"{soft} open files a process (at most {_bound(hard)})", do)
    else:
        yield ok("limits.files", f"{_bound(soft)} open files a process")
    soft, hard = processes
    if 0 <= soft < LEAST_PROCESSES:
        yield warn(
            "limits.processes",
            f"{soft} processes and threads of this user (at most {_bound(hard)})",
            "ulimit -u 16384, or fewer slots: each sandbox has several",
        )
    else:
        yield ok("limits.processes", f"{_bound(soft)} processes and threads of this user")


def own_limits() -> Iterator[Finding]:
    """Those of this process."""
    yield from limits(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_NPROC))


def _bound(limit: int) -> str:
    return "any number of" if limit < 0 else str(limit)


def kernel(proc: Path = Path("/proc/sys")) -> Iterator[Finding]:
    """User namespaces, pseudo-terminals and watches of the kernel (Linux)."""
    if not proc.is_dir():
        yield note("kernel", f"{proc} is not there: not Linux, so no sandboxes with walls")
        return
    most = _number(proc / "user/max_user_namespaces")
    allowed = _number(proc / "kernel/unprivileged_userns_clone")
    apparmor = _number(proc / "kernel/apparmor_restrict_unprivileged_userns")
    if most == 0 or allowed == 0:
        setting = "user.max_user_namespaces=15000" if most == 0 else "kernel.unprivileged_userns_clone=1"
        yield warn("kernel.user_namespaces", "off: bubblewrap and rootless Apptainer do not work", f"as root: sysctl -w {setting}")
    elif apparmor == 1:
        yield note(
            "kernel.user_namespaces",
            "restricted by AppArmor: only programs with a profile have them",
            "a profile for bwrap, or as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    else:
        yield ok("kernel.user_namespaces", "on" if most is None else f"on, at most {most}")
    ptys = _number(proc / "kernel/pty/max")
    used = _number(proc / "kernel/pty/nr") or 0
    if ptys is not None and ptys - used < LEAST_PTYS:
        yield warn("kernel.ptys", f"{used} of {ptys} pseudo-terminals in use", "as root: sysctl -w kernel.pty.max=4096: each shell has one")
    else:
        yield ok("kernel.ptys", f"{used} of {ptys if ptys is not None else 'an unknown number of'} pseudo-terminals in use")
    watches = _number(proc / "fs/inotify/max_user_watches")
    if watches is not None and watches < LEAST_INOTIFY:
        yield warn(
            "kernel.inotify", f"{watches} inotify watches a user", "as root: sysctl -w fs.inotify.max_user_watches=65536: tests watch files"
        )
    else:
        yield ok("kernel.inotify", "inotify is not there" if watches is None else f"{watches} inotify watches a user")


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def folders(found: Folders) -> Iterator[Finding]:
    """Where each is, whether it can be written, on which file system."""
    uses = {
        "run": (found.run, "ROLLSTREAM_RUN_DIR"),
        "data": (found.data, "ROLLSTREAM_DATA_DIR"),
        "scratch": (found.scratch, "ROLLSTREAM_SCRATCH_DIR"),
        "state": (found.state, "ROLLSTREAM_STATE_DIR"),
    }
    for name, (path, setting) in uses.items():
        yield from _folder(f"folders.{name}", path, setting, may_be_shared=name == "state")
    room = len(os.fsencode(found.run)) + ROOM_FOR_SOCKET
    if room > MAX_SOCKET_PATH_BYTES:
        yield fail("folders.run", f"{found.run}: too long for a socket's path", "set ROLLSTREAM_RUN_DIR to a shorter folder")


def _folder(check: str, path: Path, setting: str, *, may_be_shared: bool) -> Iterator[Finding]:
    try:
        probe = probe_folder(path)
    except (OSError, FolderError) as error:
        yield fail(check, f"{path}: {error}", f"set {setting} to a folder that this user can use")
        return
    what = f"{path} ({probe.file_system.name}, {probe.free_bytes / 2**30:.1f} GiB free{'' if probe.exists else ', not made yet'})"
    if not probe.is_writable:
        yield fail(check, f"{what}: cannot be written", f"set {setting} to a folder that this user can write")
    elif probe.file_system.is_network and not may_be_shared:
        yield fail(check, f"{what}: a network file system, where locks, sockets and fsync do not hold", f"set {setting} to a local disk")
    elif probe.free_bytes < LOW_DISK_BYTES and check != "folders.run":
        yield warn(check, f"{what}: nearly full", f"make room, or set {setting}")
    else:
        yield ok(check, what)


def network(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Proxies and certificates that the environment names. What is shown of an address holds no password."""
    named = {name: value for name, value in environ.items() if name.lower() in PROXIES and value}
    if named:
        shown = ", ".join(f"{name}={redact_text(value)}" for name, value in sorted(named.items()))
        exempt = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        local = any(word.strip() in ("*", "localhost", "127.0.0.1") for word in exempt.split(","))
        if local:
            yield ok("network.proxy", f"{shown}; not for {exempt}")
        else:
            yield warn(
                "network.proxy",
                f"{shown}, also for this machine's own servers as other programs see it",
                "set no_proxy=localhost,127.0.0.1 and your model servers; Rollstream itself calls those directly",
            )
        for name, value in named.items():
            if urlsplit(value).password:
                yield note("network.proxy", f"{name} holds a password, which each process here can read", "use a proxy without one")
    else:
        yield ok("network.proxy", "none")
    for name in CERTIFICATES:
        place = environ.get(name)
        if place and not Path(place).exists():
            yield fail(
                "network.certificates", f"{name}={place} does not exist: every TLS connection will fail", f"mend {name}, or unset it"
            )
        elif place:
            yield ok("network.certificates", f"{name}={place}")
