"""The folders a machine's part of Rollstream lives in: where each is, how it is made, and whether it is fit for its use.

| folder | setting | default | holds | must be |
| --- | --- | --- | --- | --- |
| run | `ROLLSTREAM_RUN_DIR` | `$XDG_RUNTIME_DIR/rollstream`, else `/tmp/rollstream-<uid>` | sockets | ours, 0700, short, on this machine |
| data | `ROLLSTREAM_DATA_DIR` | `$XDG_DATA_HOME/rollstream` | the embedded server's append-only file | never on a network file system |
| scratch | `ROLLSTREAM_SCRATCH_DIR` | `rollstream-scratch-<uid>` in `$SLURM_TMPDIR`, `$TMPDIR` or `/tmp` | sandboxes | on this machine |
| state | `ROLLSTREAM_STATE_DIR` | `$XDG_STATE_HOME/rollstream` | logs, history, addresses, password files | may be shared |

Sockets need short paths because the kernel's address struct is short: 107 bytes on Linux, 103 on macOS. A private folder is refused rather
than repaired when somebody else owns it: under `/tmp` that is what an attacker would have prepared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import RollstreamError
from pipeline.file_systems import FileSystem, file_system_of, nearest_existing

MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""`sun_path` without its closing zero."""

_SOCKET_NAME_ROOM = 40
"""Bytes kept free under the run folder for a subfolder and a socket's name."""


class FolderError(RollstreamError):
    """A folder cannot serve its purpose; the message names the setting that moves it."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The four folders of one user on one machine. Nothing is made until it is needed (`make_folder`, `make_private_folder`)."""

    run: Path
    """Sockets."""
    data: Path
    """What must survive: the append-only file of the embedded server."""
    scratch: Path
    """What a node works on and may lose."""
    state: Path
    """What people and other machines look at: logs, history, address and password files."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Folders:
        """The folders that the environment names, each with its default.

        Raises:
            FolderError: a setting is not an absolute path.
        """
        env = os.environ if environ is None else environ
        uid = os.getuid()
        home = Path(env["HOME"]) if env.get("HOME") else Path.home()
        return cls(
            run=_set_folder(env, "ROLLSTREAM_RUN_DIR") or _default_run_folder(env, uid),
            data=_set_folder(env, "ROLLSTREAM_DATA_DIR") or _xdg_folder(env, "XDG_DATA_HOME", home / ".local" / "share") / "rollstream",
            scratch=_set_folder(env, "ROLLSTREAM_SCRATCH_DIR") or _local_tmp(env) / f"rollstream-scratch-{uid}",
            state=_set_folder(env, "ROLLSTREAM_STATE_DIR") or _xdg_folder(env, "XDG_STATE_HOME", home / ".local" / "state") / "rollstream",
        )


def _set_folder(env: Mapping[str, str], setting: str) -> Path | None:
    text = env.get(setting)
    if not text:
        return None
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise FolderError(path, f"{setting} must be an absolute path")
    return path


def _xdg_folder(env: Mapping[str, str], variable: str, default: Path) -> Path:
    """An XDG base folder; the specification says that a relative one is to be ignored."""
    path = Path(env.get(variable, ""))
    return path if path.is_absolute() else default


def _default_run_folder(env: Mapping[str, str], uid: int) -> Path:
    """The session's runtime folder where it is there, ours and short enough; `su`, cron and containers often name one that is not."""
    runtime = Path(env.get("XDG_RUNTIME_DIR", ""))
    folder = runtime / "rollstream"
    if runtime.is_absolute() and len(os.fsencode(folder)) + _SOCKET_NAME_ROOM <= MAX_SOCKET_PATH_BYTES:
        with contextlib.suppress(OSError):
            if runtime.stat().st_uid == uid:
                return folder
    return Path("/tmp") / f"rollstream-{uid}"


def _local_tmp(env: Mapping[str, str]) -> Path:
    for variable in ("SLURM_TMPDIR", "TMPDIR"):
        path = Path(env.get(variable, ""))
        if path.is_absolute():
            return path
    return Path("/tmp")


def make_folder(path: Path) -> Path:
    """Makes the folder with its parents, readable by its owner only where it is new, and answers it.

    Raises:
        FolderError: it cannot be made, or something else stands there.
    """
    try:
        # a parent may be one of our folders too, and must be fit for that: `mkdir(parents=True)` would leave it to the umask
        for missing in reversed([parent for parent in path.parents if not parent.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise FolderError(path, f"cannot be made: {error.strerror or error}") from error
    return path


def make_private_folder(path: Path, setting: str = "ROLLSTREAM_RUN_DIR") -> Path:
    """Makes a folder that only its owner can enter, and answers it; one that exists must be so already.

    Args:
        setting: what moves it elsewhere, for the message.

    Raises:
        FolderError: it is a link, belongs to somebody else, or others may enter.
    """
    mode = _make_our_folder(path, setting)
    if mode & 0o077:
        raise FolderError(path, f"has mode {mode:04o}, others may enter: chmod 700 it, or set {setting} to another folder")
    return path


def make_own_folder(path: Path, setting: str) -> Path:
    """Makes a folder that only its owner changes, and answers it; others may look into one that exists.

    Args:
        setting: what moves it elsewhere, for the message.

    Raises:
        FolderError: it is a link, belongs to somebody else, or others may write there.
    """
    mode = _make_our_folder(path, setting)
    if mode & 0o022:
        raise FolderError(path, f"has mode {mode:04o}, others may write there: chmod go-w it, or set {setting} to another folder")
    return path


def _make_our_folder(path: Path, setting: str) -> int:
    """Answers its mode."""
    make_folder(path)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise FolderError(path, f"must be a folder, not a link or a file: remove it, or set {setting}")
    if facts.st_uid != os.getuid():
        raise FolderError(path, f"belongs to user {facts.st_uid}, not to user {os.getuid()}: set {setting} to a folder of yours")
    return stat.S_IMODE(facts.st_mode)


def socket_path(folder: Path, name: str) -> Path:
    """The path of a socket in a folder, checked against the kernel's limit.

    Raises:
        FolderError: the path is too long to bind or connect to.
    """
    path = folder / name
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise FolderError(
            path, f"has {size} bytes, a socket's path may have {MAX_SOCKET_PATH_BYTES}: set ROLLSTREAM_RUN_DIR to a shorter folder"
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderProbe:
    """What a folder is like now, for `rollstream doctor` and for refusing in time."""

    path: Path
    exists: bool
    is_writable: bool
    """A file could be made and removed in it; for a folder that is not there yet: it could be made."""
    file_system: FileSystem
    free_bytes: int


def probe_folder(path: Path, *, file_system: Callable[[Path], FileSystem] = file_system_of) -> FolderProbe:
    """Looks at a folder by using it, as permissions alone do not tell of read-only mounts, quotas and full disks.

    Args:
        path: the folder; it is not made.
        file_system: answers which file system holds a path; the kernel by default.
    """
    there = nearest_existing(path)
    exists = path.is_dir()
    return FolderProbe(
        path=path,
        exists=exists,
        is_writable=_can_write(path) if exists else os.access(there, os.W_OK | os.X_OK),
        file_system=file_system(path),
        free_bytes=shutil.disk_usage(there).free,
    )


def _can_write(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError:
        return False
    return True


def refuse_network_folder(path: Path, setting: str, *, file_system: Callable[[Path], FileSystem] = file_system_of) -> None:
    """Says no to a folder that machines share.

    Raises:
        FolderError: the folder is, or would be, on a network file system.
    """
    found = file_system(path)
    if found.is_network:
        raise FolderError(
            path,
            f"is on a network file system ({found.name}): an append-only file loses acknowledged writes there and locks may not hold; "
            f"set {setting} to a folder on a local disk of this machine",
        )
