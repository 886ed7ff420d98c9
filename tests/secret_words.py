"""Secrets of tests, which nothing may show: each has a mark, so that it is found wherever it went (docs/adr/0033-logs-and-secrets.md).

`a_secret` hands one out. From then to the end of the test, and in all tests of a module that has some of its own, the command lines and
environments of all processes of this machine are looked at again and again; what tests print, and what they leave in logs, is searched for
the words that were handed out.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

MARK = "hush-"
LOOK_S = 0.5
MOST_FILE_BYTES = 64 << 20
_AROUND = 60

_words: set[str] = set()
_is_in_test = False
_in_environments: set[str] = set()


def a_secret(what: str, *, may_be_in_environments: bool = False) -> str:
    """A word to be kept: letters, digits and hyphens, 40 and more.

    Args:
        what: it is for; a part of it, so that who finds it knows.
        may_be_in_environments: for a program that takes it in no other way, or a test of just that.
    """
    word = f"{MARK}{what}-{secrets.token_hex(16)}"
    _words.add(word)
    if may_be_in_environments:
        _in_environments.add(word)
    if _is_in_test:
        _watch.begin()
    return word


def words_in(text: str | bytes) -> set[str]:
    """Secrets that stand there."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return {word for found in re.findall(rb"hush-[a-z-]+-[0-9a-f]{32}", raw) if (word := found.decode()) in _words}


def masked(text: str) -> str:
    """A text in which every secret is named and none is told."""
    for word in words_in(text):
        text = text.replace(word, f"<{_named(word)}>")
    return text


def files_with_secrets(folder: Path, *, but: Collection[Path] = (), logs_only: bool = False) -> list[str]:
    """Files below a folder with a secret in them, each with what stands around it, masked.

    Args:
        but: files, or folders, where secrets are kept.
    """
    found = list[str]()
    if not _words:
        return found
    for path in _files_below(folder, but):
        if not logs_only or ".log" in path.name:
            with contextlib.suppress(OSError), path.open("rb") as file:
                content = file.read(MOST_FILE_BYTES)
                for word in words_in(content) if MARK.encode() in content else ():
                    at = content.index(word.encode())
                    around = content[max(0, at - _AROUND) : at + len(word) + _AROUND]
                    found.append(f"{path}: ...{masked(around.decode('utf-8', 'backslashreplace'))!r}...")
    return found


def _files_below(folder: Path, but: Collection[Path]) -> Iterator[Path]:
    """However deep: `os.walk` of Python 3.11 calls itself for each level."""
    left = [folder]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if path in but:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    left.append(path)
                elif entry.is_file(follow_symlinks=False):
                    yield path


class Watch:
    """Looks at the processes of this machine, in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._found: set[str] = set()

    def begin(self) -> None:
        """Goes on if it looks already."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="secrets", daemon=True)
            self._thread.start()

    def end(self) -> list[str]:
        """What was found since the beginning."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        found, self._found = sorted(self._found), set()
        return found

    def look(self) -> None:
        """Once."""
        for pid, kind, content in _told_by_processes():
            for word in words_in(content):
                if kind != "environ" or word not in _in_environments:
                    self._found.add(f"{kind} of process {pid} ({_name(pid)}) has {_named(word)}")

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.look()
        self.look()


_watch = Watch()


def begin_of_test(*, watches: bool) -> None:
    """From now on the first secret that is taken begins the watch.

    Args:
        watches: it begins at once: the test uses secrets that its module took when it was imported.
    """
    global _is_in_test
    _is_in_test = True
    if watches:
        _watch.begin()


def end_of_test() -> list[str]:
    """What was found in command lines and environments since the watch began."""
    global _is_in_test
    _is_in_test = False
    return _watch.end()


def _told_by_processes() -> Iterator[tuple[int, str, bytes]]:
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdecimal():
            for kind in ("cmdline", "environ"):
                with contextlib.suppress(OSError):  # ended, or another user's
                    content = Path("/proc", entry, kind).read_bytes()
                    if MARK.encode() in content:
                        yield int(entry), kind, content


def _named(word: str) -> str:
    return word.rpartition("-")[0]


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "ended"
