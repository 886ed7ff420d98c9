"""Ends what a program started, removes its folder, and finds what it changed elsewhere."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from collections.abc import Sequence

SIGKILL = 9


def kill(pid: int) -> None:
    try:  # noqa: SIM105
        os.kill(pid, SIGKILL)
    except OSError:
        pass


def end_descendants() -> bool:
    """Kills whatever descends from this process, until the kernel says that nothing does."""
    for _ in range(100_000):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for pid in descendants(os.getpid()):
            kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return True
    return False


def descendants(root: int) -> list[int]:
    """All that descends from a process, as one look at /proc sees it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.extend(below)
        waiting.extend(below)
    return found


def end_session(child: int) -> bool:
    """Where nothing keeps descendants together: ends the program's process group."""
    try:  # noqa: SIM105
        os.killpg(child, SIGKILL)
    except OSError:
        pass
    return True


def remove(folder: str) -> bool:
    """Removes a folder with all that is in it, whatever its modes are; whether it is gone."""
    try:
        os.chmod(folder, 0o700)
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                remove(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except (OSError, RecursionError):
        return False
    return True


def left_behind(places: Sequence[str], workdir: str, since: float) -> str:
    """What there is that was not there before: the first find, in words; empty when there is nothing.

    Args:
        places: `empty:PATH` = a folder that has to be empty, `old:PATH` = a tree in which nothing may be newer than `since`, mounts
            left out; none = nobody looks.
    """
    for place in places:
        kind, _, path = place.partition(":")
        try:
            if kind == "empty":
                names = [name for name in os.listdir(path) if path != workdir or not name.startswith("test-")]
                if names:
                    return os.path.join(path, names[0])[:200]
            elif kind == "old":
                found = newer(path, since, workdir)
                if found:
                    return found[:200]
        except FileNotFoundError:
            if kind == "empty" and path == workdir:
                return path + " is gone"
        except OSError as refused:
            return f"{path}: {refused.strerror}"
    if places:
        for name in ("shm", "sem", "msg"):
            try:
                with open("/proc/sysvipc/" + name) as file:
                    if len(file.readlines()) > 1:
                        return "System V " + name
            except OSError:
                pass
    return ""


def newer(top: str, since: float, workdir: str) -> str:
    """The first path below `top`, on its own file system, that was changed since then."""
    device = os.lstat(top).st_dev
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        if folder == workdir:
            continue
        if os.lstat(folder).st_ctime >= since:
            return folder
        for entry in os.scandir(folder):
            state = entry.stat(follow_symlinks=False)
            if state.st_dev != device or entry.path == workdir:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif state.st_ctime >= since:
                return entry.path
    return ""
