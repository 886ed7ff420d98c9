"""`rollstream redis acl`: the users of a server of one's own, as lines for its `aclfile` or configuration, and their password files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.redis.users import SENTINEL, acl_directives, make_passwords, password_file, roles


@dataclass(frozen=True, slots=True)
class Acl:
    """Users, and where their passwords are."""

    lines: Sequence[str]
    """For `aclfile`, or for the configuration. They hold hashes, no password."""
    password_files: Sequence[Path]


def make_acl(folder: Path, namespace: str, *, with_sentinel: bool) -> Acl:
    """The users of a server; a password that is not there yet is made, one that is there stays.

    Args:
        folder: where the password files are.
        with_sentinel: whether Sentinels watch the server.

    Raises:
        InvalidRequest: a password file is not ours, others may read it, or it holds no password.
        FolderError: the folder cannot be made.
    """
    users = (*roles(namespace), *((SENTINEL,) if with_sentinel else ()))
    lines = [" ".join(words) for words in acl_directives(users, make_passwords(folder, users))]
    return Acl(lines, [password_file(folder, user.name) for user in users])
