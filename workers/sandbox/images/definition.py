"""What an image is built from: a TOML file.

    name = "swe-base"                   what tasks say; default: the file's name
    base = "docker://python:3.11"       a name that the store knows
    network = false                     whether scripts reach the network
    env = { LANG = "C.UTF-8" }          for those who use the image; the base's are kept below
    workdir = "/repo"

    [version]                           what depends on the base alone
    run = "apt-get update && apt-get install -y git"

    [lock]                              what depends on lock files too
    copy = { "requirements.txt" = "/opt/build/requirements.txt" }
    run = "pip install -r /opt/build/requirements.txt"

    [source]                            the rest
    copy = { "." = "/repo" }
    run = "pip install -e /repo --no-deps"

Three levels, each built on the one before and kept as an image of its own: a build starts from the most exact level that is there. The
**key** of a level stands for all it was made of: the base's digest, the scripts, the content of what was copied, for itself and the levels
below it.
Paths to copy are below the folder of the definition; a folder is copied whole, its links as they are.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import InvalidRequest
from workers.sandbox.images.names import check_name
from workers.sandbox.images.shared_store import digest_of
from workers.sandbox.images.trees import list_tree

LevelName = Literal["version", "lock", "source"]
LEVELS: tuple[LevelName, ...] = ("version", "lock", "source")
_FORMAT = 1
"""Part of every key: raised when a build means something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One step of a build."""

    name: LevelName
    copy: Mapping[str, str] = field(default_factory=dict)
    """Path below the definition's folder -> absolute path in the image."""
    run: str = ""
    """A script for `/bin/sh -e`; empty = nothing is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A definition that was read."""

    path: Path
    name: str
    base: str
    network: bool
    env: Mapping[str, str]
    workdir: str
    levels: tuple[Level, ...]
    """The three, in order."""

    @classmethod
    def read(cls, path: Path) -> Definition:
        """Raises:
        InvalidRequest: it is not there, or something in it cannot be; names the field.
        """
        path = path.absolute()
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path}: {error}") from error
        _known(values, {"name", "base", "network", "env", "workdir", *LEVELS}, "")
        env = _texts(values.get("env", {}), "env")
        workdir = _text(values.get("workdir", ""), "workdir")
        if workdir and not workdir.startswith("/"):
            raise InvalidRequest(f"expected an absolute path, got {workdir!r}", field="workdir")
        network = values.get("network", False)
        if not isinstance(network, bool):
            raise InvalidRequest("expected true or false", field="network")
        return cls(
            path=path,
            name=check_name(_text(values.get("name", path.stem), "name")),
            base=check_name(_text(values.get("base", ""), "base")),
            network=network,
            env=env,
            workdir=workdir,
            levels=tuple(_level(name, values.get(name, {}), path.parent) for name in LEVELS),
        )

    def file_of(self, source: str) -> Path:
        """The file or folder that a copy reads."""
        return self.path.parent / source

    def keys(self, base_digest: str) -> dict[LevelName, str]:
        """The key of each level over a base: 64 hex digits, which are the digest of the image that the level makes.

        Raises:
            InvalidRequest: something to copy is not there or cannot be read.
        """
        keys: dict[LevelName, str] = {}
        below: object = [_FORMAT, base_digest, self.network]
        for level in self.levels:
            copied = [[target, self._content(source)] for source, target in sorted(level.copy.items(), key=lambda item: item[1])]
            last = [dict(sorted(self.env.items())), self.workdir] if level.name == "source" else []
            text = json.dumps([below, level.name, copied, level.run, last], sort_keys=True)
            below = keys[level.name] = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        return keys

    def _content(self, source: str) -> str:
        path = self.file_of(source)
        try:
            if path.is_dir():
                return f"folder {list_tree(path).digest}"
            return f"file {path.stat().st_mode & 0o777:o} {digest_of(path)}"
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror or error}", field="copy") from error


def _level(name: LevelName, values: object, folder: Path) -> Level:
    if not isinstance(values, dict):
        raise InvalidRequest("expected a table", field=name)
    _known(values, {"copy", "run"}, f"{name}.")
    copy = _texts(values.get("copy", {}), f"{name}.copy")
    for source, target in copy.items():
        path = (folder / source).resolve()
        if Path(source).is_absolute() or not path.is_relative_to(folder.resolve()):
            raise InvalidRequest(f"{source!r} is not below {folder}", field=f"{name}.copy")
        if not target.startswith("/") or ".." in target.split("/"):
            raise InvalidRequest(f"expected an absolute path for {source!r}, got {target!r}", field=f"{name}.copy")
    return Level(name=name, copy=copy, run=_text(values.get("run", ""), f"{name}.run"))


def _known(values: Mapping[str, Any], names: set[str], prefix: str) -> None:
    for name in values:
        if name not in names:
            raise InvalidRequest(f"unknown; expected one of {', '.join(sorted(names))}", field=f"{prefix}{name}")


def _text(value: object, field_name: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"expected a text, got {type(value).__name__}", field=field_name)
    return value


def _texts(value: object, field_name: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"expected a table of texts, got {type(value).__name__}", field=field_name)
    return {name: _text(inner, f"{field_name}.{name}") for name, inner in value.items()}
