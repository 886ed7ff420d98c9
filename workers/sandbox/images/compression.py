"""Layers as they lie in archives: plain, gzip or zstd, told by their first bytes and not by what a manifest says."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import io
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator
from typing import IO, cast

from workers.sandbox.images.entries import CHUNK_BYTES, BadArchive
from workers.sandbox.images.tar_stream import Readable

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class HashedPart(io.RawIOBase):
    """A part of a file, read once from its beginning, and the SHA-256 of what was read.

    Args:
        file: positioned where the part begins.
        size: bytes of the part.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the base takes any buffer; BufferedReader gives this one
        part = self._file.read(min(len(buffer), self._left))
        buffer[: len(part)] = part
        self._left -= len(part)
        self._hash.update(part)
        return len(part)

    def finish(self) -> str:
        """Reads what nobody has read, and answers the digest of the whole."""
        while self._left and (part := self._file.read(min(CHUNK_BYTES, self._left))):
            self._left -= len(part)
            self._hash.update(part)
        if self._left:
            raise BadArchive("it ends in the middle of a blob")
        return self._hash.hexdigest()


@contextlib.contextmanager
def unpacked(part: HashedPart, max_bytes: int) -> Iterator[Readable]:
    """The content of a compressed part, as a stream.

    Args:
        max_bytes: what may come out of it; more is taken as an attack.

    Raises:
        BadArchive: it does not decompress, or is too large.
    """
    buffered = io.BufferedReader(part, CHUNK_BYTES)
    start = buffered.peek(4)[:4]
    try:
        if start.startswith(_GZIP):
            with gzip.GzipFile(fileobj=buffered, mode="rb") as stream:
                yield _Bounded(stream, max_bytes)
        elif start == _ZSTD:
            with _unzstd(buffered) as stream:
                yield _Bounded(stream, max_bytes)
        else:
            yield _Bounded(buffered, max_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadArchive(f"it does not decompress: {error}") from error


class _Bounded:
    """A stream that ends with an error where too much comes out of it."""

    def __init__(self, stream: Readable, max_bytes: int) -> None:
        self._stream = stream
        self._left = max_bytes

    def read(self, size: int, /) -> bytes:
        part = self._stream.read(size)
        self._left -= len(part)
        if self._left < 0:
            raise BadArchive("more comes out of it than an image may have")
        return part


@contextlib.contextmanager
def _unzstd(stream: Readable) -> Iterator[Readable]:
    """By Python (3.14), else by the package `zstandard`, else by the program `zstd`: none of them is on every node."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module("compression.zstd")
        with module.ZstdFile(stream, mode="rb") as opened:
            yield from _guarded(opened, module.ZstdError)
        return
    with contextlib.suppress(ImportError):
        module = importlib.import_module("zstandard")
        with module.ZstdDecompressor().stream_reader(stream) as opened:
            yield from _guarded(opened, module.ZstdError)
        return
    program = shutil.which("zstd")
    if program is None:
        raise BadArchive("its layers are compressed by zstd: install the program zstd, or pip install zstandard, or use Python 3.14")
    yield from _by_program(program, stream)


def _guarded(stream: Readable, error_class: type[Exception]) -> Iterator[Readable]:
    try:
        yield stream
    except error_class as error:
        raise BadArchive(f"it does not decompress: {error}") from error


def _by_program(program: str, stream: Readable) -> Iterator[Readable]:
    process = subprocess.Popen([program, "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    problems: list[Exception] = []

    def feed(sink: IO[bytes]) -> None:
        try:
            while part := stream.read(CHUNK_BYTES):
                sink.write(part)
        except BrokenPipeError:  # the reader has seen enough, or the program has said what it does not like
            pass
        except (OSError, ValueError, BadArchive) as error:
            problems.append(error)
        finally:
            with contextlib.suppress(OSError):
                sink.close()

    feeder = threading.Thread(target=feed, args=(process.stdin,), name="zstd", daemon=True)
    feeder.start()
    try:
        yield cast(Readable, process.stdout)
        is_whole = not process.stdout.read(1)
    except BaseException:
        process.kill()
        raise
    finally:
        process.stdout.close()
        feeder.join()
        said = process.stderr.read().decode(errors="replace").strip()
        process.stderr.close()
        code = process.wait()
    if problems:
        raise problems[0]
    if code != 0 and is_whole:
        raise BadArchive(f"it does not decompress: {said or f'zstd ended with {code}'}")
