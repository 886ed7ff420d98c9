"""`rollstream redis backup` and `restore`: a copy of a running Redis, and a data directory made of one.

A copy is asked for as a replica asks for it (SYNC) and is of one moment. So the server may be any (embedded, behind Sentinels, of a
Cluster, with TLS), its disk need not be in reach, and the user `replica` may do this and nothing else. Of a Cluster there is one file a
master: a shard is whole in one of them, and shards share nothing, so files a second apart fit together.

Invariants:
  1. A folder with a `backup.json` is a whole copy: it is written last, and holds size and SHA-256 of every file.
  2. `restore` changes nothing of a directory that holds data or that a server of ours uses, and leaves nothing in one when it fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import redis
from pydantic import TypeAdapter, ValidationError

from pipeline.embedded.locks import FileLock, Mode
from pipeline.embedded.places import DataPlaces
from pipeline.errors import BrokerUnreachable, InvalidRequest
from pipeline.folders import FolderError, make_folder
from pipeline.redis_client import broker_error, thread_client
from pipeline.redis_cluster import ThreadClusterRedis
from pipeline.settings import QueueSettings

FORMAT = 1
SILENCE_S = 60.0
"""A server that prepares its copy sends an empty line each second or so; longer silence is no preparation."""
MARK_BYTES = 40
PIECE_BYTES = 1 << 20
MAGICS = (b"REDIS", b"VALKEY")
RDB_WORD_BYTES = 9
"""`REDIS0010`, `VALKEY080`."""
INDEX = "backup.json"
AOF_FOLDER, AOF_BASE, AOF_INDEX = "appendonlydir", "appendonly.aof.1.base.rdb", "appendonly.aof.manifest"
"""Names of a server's append-only file (Redis 7 and Valkey): a base, which may be a snapshot, and what was written since."""


@dataclass(frozen=True, slots=True)
class CopiedServer:
    """One server in a copy."""

    file: str
    bytes: int
    sha256: str
    rdb: str
    """First word of the file: name and number of its format. A server reads its own and older ones."""
    slots: tuple[tuple[int, int], ...] = ()
    """Of a master of a Cluster, first and last of each range."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A whole copy."""

    format: int
    made: str
    """When, in UTC."""
    servers: tuple[CopiedServer, ...]


def backup(settings: QueueSettings, folder: Path) -> Backup:
    """Copies what the servers of a queue hold.

    Args:
        folder: made, or empty. What lies there afterwards is for its owner only: it holds every prompt and every result.

    Raises:
        InvalidRequest: the folder holds something.
        BrokerUnreachable: the server ended the copy, or does not answer.
        BrokerMisused: this user may not copy.
        FolderError: the disk is full, or cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InvalidRequest(f"{folder} is not empty: name a folder that is not there yet", field="folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    servers = []
    try:
        with thread_client(settings) as client:
            for number, (node_client, slots) in enumerate(_servers(client)):
                path = folder / f"{number}.rdb"
                digest, size, rdb = _copy(node_client, path)
                servers.append(CopiedServer(path.name, size, digest, rdb, slots))
    except redis.RedisError as error:
        raise broker_error(error) from error
    except OSError as error:
        raise FolderError(folder, f"cannot hold the copy: {error}") from error
    made = Backup(FORMAT, datetime.now(UTC).isoformat(timespec="seconds"), tuple(servers))
    _write_last(folder / INDEX, orjson.dumps(asdict(made), option=orjson.OPT_INDENT_2) + b"\n")
    return made


def read_backup(folder: Path) -> Backup:
    """What a copy says of itself.

    Raises:
        InvalidRequest: it is none, or not a whole one.
    """
    try:
        found = TypeAdapter(Backup).validate_json((folder / INDEX).read_bytes())
    except FileNotFoundError as error:
        raise InvalidRequest(f"{folder} holds no {INDEX}: it is no backup, or one that was not finished", field="backup") from error
    except (OSError, ValidationError) as error:
        raise InvalidRequest(f"{folder / INDEX} cannot be read: {error}", field="backup") from error
    if found.format != FORMAT:
        raise InvalidRequest(f"{folder} has format {found.format}, this program reads {FORMAT}: use the one that made it", field="backup")
    return found


def restore(folder: Path, data_dir: Path, *, server: int | None = None) -> CopiedServer:
    """Makes the data directory of a server out of a copy. Started there with `appendonly yes`, it has what the copied one had.

    Args:
        server: which file, where the copy is of several servers.

    Raises:
        InvalidRequest: the copy is not whole, the directory holds data or is in use, or it is not said which server is meant.
        OSError: the disk.
    """
    made = read_backup(folder)
    if server is None and len(made.servers) > 1:
        raise InvalidRequest(f"{folder} is of {len(made.servers)} servers: say which, 0 to {len(made.servers) - 1}", field="server")
    if not 0 <= (server or 0) < len(made.servers):
        raise InvalidRequest(f"{folder} is of {len(made.servers)} servers, there is no number {server}", field="server")
    copied = made.servers[server or 0]
    if Path(copied.file).name != copied.file:
        raise InvalidRequest(f"{folder / INDEX} names a file outside of its folder", field="backup")
    places = DataPlaces(make_folder(data_dir).resolve())
    with FileLock(places.instance_lock) as lock:
        if not lock.try_lock(Mode.EXCLUSIVE):
            raise InvalidRequest(f"{data_dir} is in use by a server: end it, or name another directory", field="data_dir")
        held = [name for name in (AOF_FOLDER, "dump.rdb", "appendonly.aof") if (data_dir / name).exists()]
        if held:
            raise InvalidRequest(f"{data_dir} holds data already ({held[0]}): name an empty directory", field="data_dir")
        _lay(folder / copied.file, data_dir / AOF_FOLDER, copied)
    return copied


def _lay(source: Path, target: Path, copied: CopiedServer) -> None:
    """The snapshot as the base of an append-only file; whole or not at all."""
    target.mkdir(mode=0o700)
    try:
        digest = hashlib.sha256()
        with source.open("rb") as reads, _private(target / AOF_BASE) as (write, _):
            while piece := reads.read(PIECE_BYTES):
                digest.update(piece)
                write(piece)
        if digest.hexdigest() != copied.sha256:
            raise InvalidRequest(f"{source} is not what was copied: its SHA-256 differs from {INDEX}; take another backup", field="backup")
        _write_last(target / AOF_INDEX, f"file {AOF_BASE} seq 1 type b\n".encode())
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _servers(client: redis.Redis) -> Iterator[tuple[redis.Redis, tuple[tuple[int, int], ...]]]:
    """A client of each server that holds a part, and the slots it has."""
    if not isinstance(client, ThreadClusterRedis):
        yield client, ()
        return
    for node, slots in client.masters().items():
        yield client.of_node(node), tuple(slots)


def _copy(client: redis.Redis, path: Path) -> tuple[str, int, str]:
    """SHA-256, size and format of what a server sent into a file."""
    pool: Any = client.connection_pool  # redis-py leaves the methods of pools and connections untyped
    connection = pool.get_connection()
    try:
        connection.send_command("REPLCONF", "capa", "eof")
        connection.read_response()
        connection.send_command("SYNC")
        sock: socket.socket = connection._sock
        sock.settimeout(SILENCE_S)
        with _private(path) as (write, size):
            digest, start = hashlib.sha256(), bytearray()

            def keep(piece: bytes) -> None:
                digest.update(piece)
                start.extend(piece[: max(0, RDB_WORD_BYTES - len(start))])
                write(piece)

            _receive(sock, keep)
            if not start.startswith(MAGICS):
                raise BrokerUnreachable(f"the server sent no snapshot but {bytes(start)!r}")
            return digest.hexdigest(), size(), start[:RDB_WORD_BYTES].decode("ascii", "replace")
    finally:
        connection.disconnect()
        pool.release(connection)


def _receive(sock: socket.socket, keep: Callable[[bytes], None]) -> None:
    """Takes a snapshot off a connection: empty lines while it is made, then its length or the mark that ends it, then the bytes.

    Raises:
        redis.exceptions.NoPermissionError: the server refuses; what else it may say to SYNC comes as an end of the connection.
        redis.ConnectionError: it ended before the snapshot did.
    """
    buffer = b""
    while b"\n" not in buffer.lstrip(b"\n"):
        buffer = buffer.lstrip(b"\n") + _more(sock)
    head, rest = buffer.lstrip(b"\n").split(b"\n", 1)
    word = head.rstrip(b"\r")
    if word.startswith(b"$EOF:") and len(word) == 5 + MARK_BYTES:
        _until_mark(sock, rest, word[5:], keep)
    elif word.startswith(b"$") and word[1:].isdigit():
        left = int(word[1:])
        while left:
            piece = (rest or _more(sock))[:left]
            rest = b""
            keep(piece)
            left -= len(piece)
    else:
        raise redis.exceptions.NoPermissionError(word[1:].decode("utf-8", "replace"))


def _until_mark(sock: socket.socket, held: bytes, mark: bytes, keep: Callable[[bytes], None]) -> None:
    """The server sends nothing after the mark until it is told that the snapshot was loaded, which it never is."""
    while not held.endswith(mark):
        if len(held) > MARK_BYTES:
            keep(held[:-MARK_BYTES])
            held = held[-MARK_BYTES:]
        held += _more(sock)
    keep(held[:-MARK_BYTES])


def _more(sock: socket.socket) -> bytes:
    try:
        piece = sock.recv(PIECE_BYTES)
    except TimeoutError:
        raise redis.TimeoutError(f"the server was silent for {SILENCE_S:g} s in the middle of a copy") from None
    except OSError as error:
        raise redis.ConnectionError(str(error)) from error
    if not piece:
        raise redis.ConnectionError("the server ended the copy: see its log (memory, disk, client-output-buffer-limit replica)")
    return piece


@contextlib.contextmanager
def _private(path: Path) -> Iterator[tuple[Callable[[bytes], object], Callable[[], int]]]:
    """A new file of ours only, on the disk when the block is left: what writes to it, and what says how long it is."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        yield file.write, file.tell
        file.flush()
        os.fsync(fd)


def _write_last(path: Path, content: bytes) -> None:
    """What makes the files beside it count: whole, and on the disk after them."""
    beside = path.with_suffix(".new")
    with _private(beside) as (write, _):
        write(content)
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
