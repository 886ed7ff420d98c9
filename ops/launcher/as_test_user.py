"""Runs a command as the unprivileged test user, started by root: `python -I as_test_user.py [--user NAME] [--path FOLDER]... -- COMMAND...`

What a model writes runs without root, so its walls are tested without root; but CI is root, and what root installed is often where
nobody else may look (`/root`, a temporary folder). Nothing of the machine is changed for that:

1. The command gets a mount namespace of its own, which ends with it.
2. In it each folder that keeps the user out is covered by an empty readable one, in which only the folders that the command needs are put
   back: the project, the environment, the Python it was made from, and those named by `--path`.
3. `/dev/fuse` is there for the user too, as on any desktop: images in one file are mounted through it.
4. Where the machine has control groups, the command runs in some of its own, which the user may part further, as on a node that delegates
   them. A process that stays behind removes them when the command has ended.
5. The command has the user's uid, gid and home, no other groups, no capability, and of the environment only what names no secret.

It becomes the command (exec all the way): signals, terminal and exit code are the command's own.
"""

import argparse
import contextlib
import os
import pwd
import select
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

TEST_USER = "rollstream-test"
PROJECT = Path(__file__).resolve().parents[2]
_INSIDE = "--in-own-mounts"
_GROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "pids", "cpuacct")
_VERSION_2 = (_GROUPS, _GROUPS / "unified")
_REMOVE_S = 20.0
"""What the command left running may take so long to end before its groups are left behind."""
_KEPT = frozenset({"PATH", "LANG", "TERM", "CI", "NO_COLOR", "TZ", "PYTHONPATH", "PYTHONUNBUFFERED"})
_KEPT_PREFIXES = ("LC_", "ROLLSTREAM_", "PYTEST_", "OPENBLAS_")


def main(argv: Sequence[str]) -> None:
    """Take the steps above; returns only by becoming another program, or raises."""
    parser = argparse.ArgumentParser(description="Run a command as the unprivileged test user.")
    parser.add_argument("--user", default=TEST_USER)
    parser.add_argument("--path", action="append", default=[], type=Path, help="a folder that the command needs beside the usual ones")
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(argv)
    if not asked.in_own_mounts:
        own = ["unshare", "--mount", "--propagation", "private", sys.executable, "-I", __file__, _INSIDE, *argv]
        os.execvp(own[0], own)
    user = pwd.getpwnam(asked.user)
    let_in(user, [PROJECT, PROJECT / ".venv", Path(sys.base_prefix), Path(sys.executable).parent, Path.cwd(), *asked.path])
    give_fuse()
    give_groups(user)
    drop = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--inh-caps=-all", "--ambient-caps=-all"]
    os.chdir(Path.cwd())  # by name once more: the way here may be a new one
    os.execvpe(drop[0], [*drop, "--", *asked.command], environ_for(user, os.environ))


def environ_for(user: pwd.struct_passwd, environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own variables, and those of the caller that tests need."""
    kept = {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return {**kept, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": "/bin/bash"}


def may_enter(user: pwd.struct_passwd, folder: Path) -> bool:
    """Whether the mode bits let the user pass through a folder."""
    found = folder.stat()
    if found.st_uid == user.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == user.pw_gid else stat.S_IXOTH))


def covers_for(user: pwd.struct_passwd, needed: Iterable[Path]) -> dict[Path, list[Path]]:
    """Folders that keep the user out, topmost only, with what has to be put back below each."""
    covers: dict[Path, list[Path]] = {}
    for path in sorted({path.resolve() for path in needed if path.exists()}):
        closed = next((folder for folder in [*reversed(path.parents), path] if not may_enter(user, folder)), None)
        if closed is None:
            continue
        wanted = sorted(path.iterdir()) if closed == path else [path]  # one that is closed itself: all that is in it
        put_back = covers.setdefault(closed, [])
        put_back += [one for one in wanted if not any(one.is_relative_to(other) for other in put_back)]
    return covers


def let_in(user: pwd.struct_passwd, needed: Iterable[Path]) -> None:
    """Cover what keeps the user out; only in a mount namespace of our own."""
    for closed, put_back in covers_for(user, needed).items():
        with tempfile.TemporaryDirectory(prefix="rollstream-mounts-") as stage:
            staged = []
            for number, path in enumerate(put_back):
                place = Path(stage, str(number))
                _make_like(path, place)
                _mount("--rbind", path, place)
                staged.append((place, path))
            _mount("-t", "tmpfs", "-o", "mode=0755,size=1m", "rollstream", closed)
            for place, path in staged:
                path.parent.mkdir(parents=True, exist_ok=True)
                _make_like(place, path)
                _mount("--move", place, path)


def give_fuse() -> None:
    """A `/dev/fuse` that everybody may open, where there is one and root may make devices; else tests that need it are left out."""
    device = Path("/dev/fuse")
    if not device.exists() or device.stat().st_mode & 0o006 == 0o006:
        return
    with tempfile.TemporaryDirectory(prefix="rollstream-mounts-") as stage:
        _mount("-t", "tmpfs", "-o", "mode=0755,size=64k", "rollstream", stage)
        ours = Path(stage, "fuse")
        try:
            os.mknod(ours, stat.S_IFCHR | 0o666, device.stat().st_rdev)
            ours.chmod(0o666)
            _mount("--bind", ours, device)
        except PermissionError:
            print("no device files may be made here: images in one file cannot be tried", file=sys.stderr)
        finally:
            subprocess.run(["umount", "--lazy", stage], check=True)


def give_groups(user: pwd.struct_passwd) -> None:
    """Moves this process into groups below its own that the user may part; nothing where root may make none."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, where = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), where))
    word = f"rollstream-test-{os.getpid()}"
    wanted = [_GROUPS / name / own[name].lstrip("/") / word for name in _CONTROLLERS if name in own]
    wanted += [root / own[""].lstrip("/") / word for root in _VERSION_2 if "" in own and (root / "cgroup.controllers").exists()]
    groups = []
    for group in wanted:
        with contextlib.suppress(OSError):  # not there, or not root's to write
            for left in group.parent.glob("rollstream-test-*"):  # of a run that left something running for longer than was waited
                if not Path("/proc", left.name.rpartition("-")[2]).exists():
                    _remove_group(left)
            group.mkdir()
            groups.append(group)
    if not groups:
        return
    _remove_afterwards(groups)
    for group in groups:
        for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
            if path.exists():
                os.chown(path, user.pw_uid, user.pw_gid)
        (group / "cgroup.procs").write_text("0")


def _remove_afterwards(groups: Sequence[Path]) -> None:
    """By a child of a child: the command must not meet a child that it did not start."""
    command = os.pidfd_open(os.getpid())
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        os.close(command)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            select.select([command], [], [])
            deadline = time.monotonic() + _REMOVE_S
            while not all([_remove_group(group) for group in groups]) and time.monotonic() < deadline:  # noqa: C419  # try each
                time.sleep(0.05)
    finally:
        os._exit(0)


def _remove_group(group: Path) -> bool:
    """With what the command made in it; False while something runs there."""
    for folder in [*sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True), group]:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _make_like(model: Path, place: Path) -> None:
    if model.is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
