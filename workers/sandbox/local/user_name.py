"""The name that the user of a sandbox has inside: `agent`, with the working folder as home, unless the image knows the uid already.

It is written to the layer above the image before the first start, so programs that look their user up (`whoami`, ssh, git, Python's
`getpass`) find one. Nothing of the node's users gets in, and the image stays as it is. A file that the image has as anything but a plain
file is left alone; a link is followed as inside the sandbox, where the root is `/`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

NAME = "agent"
ABOUT = "user of the sandbox"
"""In the field for people; by it the line is known for ours."""
MOST_LINKS = 40


def passwd_line(name: str, home: str) -> str:
    home = "/" if {":", "\n"} & set(home) else home  # such a path cannot be said in the file
    return f"{name}:x:{os.getuid()}:{os.getgid()}:{ABOUT}:{home}:/bin/bash"


def group_line(name: str) -> str:
    return f"{name}:x:{os.getgid()}:"


def give_name(image: Path, upper: Path, home: str) -> None:
    """Adds the user, and the group, that the image does not know. Blocks.

    Args:
        image: the root file system, a folder.
        upper: the layer above it, where nothing has been changed yet.
        home: the working folder, as inside.
    """
    for file, number in (("passwd", os.getuid()), ("group", os.getgid())):
        place = _place_within(image, f"etc/{file}")
        try:
            if not place or not stat.S_ISREG(os.lstat(image / place).st_mode):
                continue
            text = (image / place).read_text(encoding="utf-8", errors="surrogateescape")
        except NotADirectoryError:
            continue
        except FileNotFoundError:
            text = ""
        fields = [line.split(":") for line in text.splitlines()]
        if any(len(known) > 2 and known[2] == str(number) for known in fields):
            continue
        name = NAME if all(known[0] != NAME for known in fields) else f"{NAME}{number}"
        added = passwd_line(name, home) if file == "passwd" else group_line(name)
        _make_parents(image, upper, place)
        begun = text if not text or text.endswith("\n") else f"{text}\n"
        (upper / place).write_text(f"{begun}{added}\n", encoding="utf-8", errors="surrogateescape")
        (upper / place).chmod(0o644)


def take_name_back(image: Path, upper: Path) -> None:
    """Undoes `give_name` in what becomes an image: that is for any user. Only for a layer of which nothing runs any more. Blocks."""
    for file in ("passwd", "group"):
        place = _place_within(image, f"etc/{file}")
        at = upper / place
        if not place or not _is_plain_file_below(upper, place):
            continue
        lines = at.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
        kept = "".join(line for line in lines if not _is_ours(line.rstrip("\n"), file))
        try:
            before = (image / place).read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            before = ""
        if kept.rstrip("\n") == before.rstrip("\n"):
            at.unlink()
        elif len(kept) != sum(map(len, lines)):
            at.write_text(kept, encoding="utf-8", errors="surrogateescape")


def _is_ours(line: str, file: str) -> bool:
    fields = line.split(":")
    if file == "passwd":
        return len(fields) == 7 and fields[4] == ABOUT
    return line in (group_line(NAME), group_line(f"{NAME}{os.getgid()}"))


def _place_within(root: Path, path: str) -> str:
    """Where a path leads below a root, links followed as by a process whose `/` it is; empty where they lead to each other."""
    left = path.split("/")[::-1]
    found: list[str] = []
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            found[-1:] = []
        elif part not in ("", "."):
            at = root.joinpath(*found, part)
            if not at.is_symlink():
                found.append(part)
                continue
            links += 1
            if links > MOST_LINKS:
                return ""
            target = os.readlink(at)
            if target.startswith("/"):
                found.clear()
            left += target.split("/")[::-1]
    return "/".join(found)


def _make_parents(image: Path, upper: Path, place: str) -> None:
    """The folders above a file, as the image has them: those of the upper layer are the ones that show."""
    parts = place.split("/")[:-1]
    for depth in range(len(parts)):
        folder = "/".join(parts[: depth + 1])
        if not (upper / folder).exists():
            mode = stat.S_IMODE((image / folder).stat().st_mode) if (image / folder).exists() else 0o755
            (upper / folder).mkdir()
            (upper / folder).chmod(mode | 0o700)


def _is_plain_file_below(root: Path, place: str) -> bool:
    """Whether it is one, by real folders only: what ran inside may have put a link in place of any of them."""
    at = root
    try:
        for part in place.split("/"):
            if stat.S_ISLNK(os.lstat(at).st_mode):
                return False
            at = at / part
        return stat.S_ISREG(os.lstat(at).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
