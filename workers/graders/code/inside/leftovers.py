"""Ends what a program started, removes its folder, and finds what it changed elsewhere."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from collections.abc import Sequence

SIGKILL = 9
ENAMETOOLONG = 36
BLOCK_BYTES = 512
DEEPEST = 120
"""Folders in folders that a program may leave; who watches the sandbox as a whole does not look much deeper."""


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


class Tree:
    """A walk through folders that a stranger filled, to count or to remove what is in them.

    Args:
        most: files and folders together; a walk ends with the first above.
        seconds: it may take so long.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most = most
        self.until = time.monotonic() + seconds
        self.files = 0
        self.bytes = 0
        self.is_deep = False

    def is_over(self) -> bool:
        return self.files > self.most or self.is_deep or time.monotonic() > self.until

    def count(self, top: str) -> None:
        """Adds what is in a folder, as far as it can be read. Others may be at work in it."""
        waiting = [(top, 0)]
        while waiting:
            folder, depth = waiting.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self.files += 1
                        if self.is_over():
                            return
                        self.bytes += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                        if entry.is_dir(follow_symlinks=False):
                            self.is_deep = self.is_deep or depth >= DEEPEST
                            waiting.append((entry.path, depth + 1))
            except OSError as refused:  # it is gone, or closed
                self.is_deep = self.is_deep or refused.errno == ENAMETOOLONG

    def remove(self, top: str) -> bool:
        """Removes a folder with all that is in it, whatever its modes are; whether it is gone.

        It goes by descriptors, one at a time, so neither the depth of folders nor the length of paths matters. Nobody else may be at work
        in it: a folder that was moved away under the walk would lead it elsewhere on the way up.
        """
        try:
            os.chmod(top, 0o700)
            here = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        way: list[tuple[str, list[str]]] = []
        """Names of the folders above, each with those of its folders that are left to do."""
        try:
            left = self._emptied(here)
            while True:
                if self.is_over():
                    return False
                if left:
                    name = left.pop()
                    os.chmod(name, 0o700, dir_fd=here)
                    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                    os.close(here)
                    here = below
                    way.append((name, left))
                    left = self._emptied(here)
                elif way:
                    above = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
                    os.close(here)
                    here = above
                    name, left = way.pop()
                    os.rmdir(name, dir_fd=here)
                else:
                    os.rmdir(top)
                    return True
        except OSError:
            return False
        finally:
            os.close(here)

    def _emptied(self, folder: int) -> list[str]:
        """Removes what is no folder; the names of those."""
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self.files += 1
                if self.is_over():
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=folder)
        return folders


def others_in(workdir: str, this_round: str) -> list[str]:
    """What is in the folder of all tests beside those of this round."""
    return [name for name in os.listdir(workdir) if not name.startswith(this_round)]


def left_behind(places: Sequence[str], workdir: str, this_round: str, since: float) -> str:
    """What there is that was not there before: the first find, in words; empty when there is nothing.

    Args:
        places: `empty:PATH` = a folder that has to be empty, `old:PATH` = a tree in which nothing may be newer than `since`, mounts
            left out; none = nobody looks.
        this_round: what the names of folders begin with that are there by right.
    """
    for place in places:
        kind, _, path = place.partition(":")
        try:
            if kind == "empty":
                names = others_in(workdir, this_round) if path == workdir else os.listdir(path)
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
