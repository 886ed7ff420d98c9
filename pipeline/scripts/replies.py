"""What replies of scripts say in common: words and numbers, and why a call was refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from pipeline.errors import QueueFull, RunClosed, StaleIncarnation
from pipeline.scripts.runner import OutOfMemory

OOM_RETRY_AFTER_S = 2.0


def text(value: object) -> str:
    """A word of a reply."""
    return value.decode() if isinstance(value, bytes) else str(value)


def whole(value: object) -> int:
    """A number of a reply."""
    return int(float(value)) if isinstance(value, bytes) and b"." in value else int(cast(bytes, value))


def check_refusal(reply: Sequence[object], run: str, incarnation: int) -> None:
    """Raises what a script refused a trainer's call for.

    Raises:
        QueueFull, StaleIncarnation, RunClosed
    """
    word = reply[0] if reply else b""
    if word == b"stale":
        raise StaleIncarnation(run, incarnation, text(reply[1]))
    if word == b"closed":
        raise RunClosed(run, text(reply[1]))
    if word == b"full":
        raise QueueFull(text(reply[1]), whole(reply[2]) / 1000)


@contextmanager
def full_when_out_of_memory() -> Iterator[None]:
    """A script that the server itself refused, above its memory bound, is refused like any that finds the queue full.

    Raises:
        QueueFull
    """
    try:
        yield
    except OutOfMemory as error:
        raise QueueFull("memory: Redis is above its bound", OOM_RETRY_AFTER_S) from error
