"""The users of a Redis of Rollstream: who may do what, and the files that hold their passwords.

| user | may |
| --- | --- |
| `trainer` | run scripts, read and acknowledge its results; never claim a job |
| `worker` | claim, renew and settle jobs: every data command on the keys of Rollstream |
| `supervisor` | as a worker |
| `ops` | read everything, change nothing but which exporter of metrics reads, take no message |
| `rq` | housekeeping's queue: the keys `<namespace>:hk:*` and nothing of the queue of rollouts |
| `replica` | read the stream of replication: a replica (`masteruser`), and `rollstream redis backup` |
| `sentinel` | watch servers and hand the master's part over (`sentinel auth-user`); only where there are Sentinels |

Those of the queue are held to the keys `{<namespace>:...}:*`. A script's own commands are checked against the user that calls it, and
scripts touch every key of a shard, so a trainer cannot be kept from writing by key; it is kept from what its scripts never do and a thief
would: claiming the entries of a stage. Nobody has ACL, FLUSHALL, SHUTDOWN, DEBUG, or CONFIG but to rewrite it. The default user is off.

The server learns SHA-256 hashes only. A password is 32 random bytes, so its hash gives nothing away.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.embedded import read_password
from pipeline.embedded.server_config import Directive
from pipeline.errors import InvalidRequest
from pipeline.folders import make_folder

_CONNECTION = (
    "+auth +hello +ping +echo +select +reset +quit +client -client|kill -client|pause -client|unpause -client|unblock -client|no-evict "
    "+role +cluster|slots"
)
_DATA = "+@hash +@string +@sortedset +@set +@list +@stream"
_AROUND_DATA = "+exists +type +expire +pexpire +ttl +pttl +del +unlink +rename +time +info +scan +wait"
_SCRIPTS = "+@scripting -script|flush -script|kill -function +@pubsub +@transaction"
_NOT_FOR_TRAINERS = "-xread -xreadgroup -xclaim -xautoclaim -xgroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A user of the server."""

    name: str
    rules: tuple[str, ...]
    """What it may, in the words of ACL SETUSER; a selector in parentheses is one word."""


_WATCHES = (
    "+multi +exec +slaveof +replicaof +ping +subscribe +publish +role +info +config|rewrite +client|setname +client|kill +script|kill"
)
SENTINEL = Role(name="sentinel", rules=("&*", "-@all", *_WATCHES.split()))
"""What Sentinels do on the servers that they watch, as their documentation lists it."""


def roles(namespace: str) -> tuple[Role, ...]:
    """The users of every server, held to the keys of one namespace."""
    tag = f"{{{namespace}:*}}"
    data = f"~{tag}:* &{tag}:* -@all {_CONNECTION} {_DATA} {_AROUND_DATA} {_SCRIPTS}".split()
    takes_results = f"(~{tag}:s:results:* +xread +xreadgroup +xgroup|create +xgroup|createconsumer)"
    leads_exporters = f"(~{tag}:exporter +get +set +pexpire)"
    hears_events = f"(~{tag}:s:reward ~{tag}:s:cancel +xread)"
    worker = (*data, "-xgroup|destroy")
    return (
        Role(name="trainer", rules=(*data, *_NOT_FOR_TRAINERS.split(), takes_results, hears_events)),
        Role(name="worker", rules=worker),
        Role(name="supervisor", rules=worker),
        Role(
            name="ops",
            rules=(
                *f"%R~{tag}:* -@all {_CONNECTION} +@read -xread -keys +info +time +memory|usage +slowlog|get +slowlog|len "
                f"+latency|latest +latency|history +client|list +xinfo".split(),
                leads_exporters,
            ),
        ),
        Role(
            name="rq",
            rules=tuple(f"~{namespace}:hk:* &{namespace}:hk:* -@all {_CONNECTION} {_DATA} {_AROUND_DATA} {_SCRIPTS} +persist".split()),
        ),
        Role(name="replica", rules=("-@all", "+psync", "+sync", "+replconf", "+ping", "+auth", "+role", "+cluster|slots")),
    )


def acl_directives(users: Iterable[Role], passwords: Mapping[str, str]) -> list[Directive]:
    """The configuration that makes the users, and turns the default one off."""
    lines: list[Directive] = [("user", "default", "off", "resetpass", "resetkeys", "resetchannels", "-@all")]
    for role in users:
        digest = hashlib.sha256(passwords[role.name].encode()).hexdigest()
        lines.append(("user", role.name, "on", f"#{digest}", *role.rules))
    return lines


def password_file(folder: Path, user: str) -> Path:
    """Where a user's password is."""
    return folder / f"{user}.password"


def make_passwords(folder: Path, users: Iterable[Role]) -> dict[str, str]:
    """The password of each user, from its file; a file that is not there is made, readable by its owner only.

    Raises:
        InvalidRequest: a file is not ours, others may read it, or it holds no password.
        FolderError: the folder cannot be made.
    """
    make_folder(folder)
    return {role.name: _password_in(password_file(folder, role.name)) for role in users}


def _password_in(path: Path) -> str:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        _refuse_open_file(path)
        return read_password(path, "password file")
    password = secrets.token_urlsafe(32)
    with os.fdopen(fd, "w") as file:
        file.write(password + "\n")
        file.flush()
        os.fsync(fd)
    return password


def _refuse_open_file(path: Path) -> None:
    facts = path.lstat()
    mode = stat.S_IMODE(facts.st_mode)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
        raise InvalidRequest(f"{path} must be a file of user {os.getuid()}: remove it, and a new one is made", field="password file")
    if mode & 0o077:
        raise InvalidRequest(f"{path} has mode {mode:04o}, others may read it: make a new one, or chmod 600 it", field="password file")
