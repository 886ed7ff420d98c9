"""Which GPUs a node's servers have. Pure, but for one look at the devices of the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import InvalidRequest

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Slurm sets it to the GPUs of the allocation."""
DEVICES = Path("/dev")
_NAME = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+", re.ASCII)


def gpus_here(asked: str | None, environ: Mapping[str, str], devices: Path = DEVICES) -> tuple[str, ...]:
    """The GPUs to use, by their names: those asked for, else those that the environment shows, else those of the machine.

    Args:
        asked: names with commas between them; None = nobody asked.

    Raises:
        InvalidRequest: a name is none, or is there twice.
    """
    text = environ.get(VISIBLE) if asked is None else asked
    if text is None:
        numbers = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*")]
        return tuple(sorted((number for number in numbers if number.isdecimal()), key=int))
    return gpus_in(text, VISIBLE if asked is None else "--gpus")


def gpus_in(text: str, source: str) -> tuple[str, ...]:
    """GPUs by their names, of a text with commas between them.

    Args:
        source: where it stands, for the message.

    Raises:
        InvalidRequest: a name is none, or is there twice.
    """
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{source}={text}: {name!r} is no GPU: expected numbers or names such as GPU-4f2..., commas between them")
    if len({*names}) < len(names):
        raise InvalidRequest(f"{source}={text}: a GPU is there twice")
    return names


def divide(gpus: Sequence[str], per_server: int, servers: int | None) -> list[tuple[str, ...]]:
    """The GPUs of each server. Neighbours stay together: they have the fastest link.

    Args:
        servers: how many; None = as many as there are GPUs for.

    Raises:
        InvalidRequest: there are too few, or some would be left over that nobody decided to leave.
    """
    if not gpus:
        raise InvalidRequest(f"no GPU here: --gpus or {VISIBLE} names them; --cpu serves without")
    most = len(gpus) // per_server
    if servers is None and len(gpus) % per_server:
        raise InvalidRequest(
            f"{len(gpus)} GPUs do not divide into servers of {per_server}: --gpus names those to use, or --servers says how many servers"
        )
    if most < (servers or 1):
        raise InvalidRequest(
            f"{servers or 1} servers of {per_server} GPUs each want {(servers or 1) * per_server}, and here are {len(gpus)}"
        )
    return [tuple(gpus[first : first + per_server]) for first in range(0, (servers or most) * per_server, per_server)]
