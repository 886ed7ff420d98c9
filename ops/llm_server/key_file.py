"""The file with the key of a run's inference servers: read, and made when it is not there.

Several machines may start servers at once on one shared folder. The key is written beside the file and linked to its name, which
succeeds once: all read the same key, and none reads half of one.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from pipeline.errors import InvalidRequest
from pipeline.folders import make_folder


def read_key(path: Path) -> str:
    """The key.

    Raises:
        InvalidRequest: there is none, or it cannot be sent in a header.
    """
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {getattr(error, 'strerror', None) or error}", field="key_file") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidRequest(f"{path}: expected one line of ASCII letters, digits and signs: the key of the servers", field="key_file")
    return key


def key_in(path: Path) -> str:
    """The key; a new one, in a file for its owner alone, where there is none.

    Raises:
        InvalidRequest: it is no key, or others may read the file.
        FolderError: its folder cannot be made.
    """
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o007:
        raise InvalidRequest(f"{path}: everybody may read the key: chmod o= {path}", field="key_file")
    return read_key(path)


def _make(path: Path) -> None:
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return  # another made it meanwhile
    finally:
        draft.unlink()
