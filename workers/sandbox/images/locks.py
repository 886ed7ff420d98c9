"""A lock on the right to make, change or remove one thing on disk, held by the operating system for as long as its process lives.

The file may be removed by who holds the lock; so whoever gets it looks whether the file is still the one at that path, and else begins
anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

Say = Callable[[str], None]
"""Tells a person what is being done; called from the thread that does it."""


def say_nothing(_: str) -> None:
    """For callers whom nobody watches."""


@contextlib.contextmanager
def exclusive(path: Path, say: Say = say_nothing) -> Iterator[None]:
    """Holds a lock; waits for it, and says for whom."""
    descriptor = _take(path, wait=True, say=say)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_if_free(path: Path) -> Iterator[bool]:
    """Holds a lock if nobody has it; False when somebody does."""
    descriptor = _take(path, wait=False, say=say_nothing)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one that a path names."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    facts = os.fstat(descriptor)
    return (facts.st_dev, facts.st_ino) == (there.st_dev, there.st_ino)


def _take(path: Path, *, wait: bool, say: Say) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _flock(descriptor, wait=wait, say=say):
                os.close(descriptor)
                return None
            if is_same_file(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _flock(descriptor: int, *, wait: bool, say: Say) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    if wait:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace")
        say(f"waits for {holder or 'another process'}, which is at it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return wait
