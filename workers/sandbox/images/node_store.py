"""Extracted images on this node's disk. Everything here blocks; callers use a thread.

    NODE/<digest>/rootfs/        the tree
                  meta.json      what it is
                  listing.gz     what is in it, by which damage is found
                  lease          flocked shared by each that uses it
                  used           its time stamp is the last use
    NODE/.locks/<digest>         flocked by who makes or removes that image
    NODE/.new-<digest>/          being made, or left half made
    NODE/.trash-<digest>-<x>/    being removed, or left half removed
    NODE/.tmp-<x>/               what programs write while they work; its lock is .locks/.tmp-<x>

1. A folder has its final name only when it is complete: meta.json is its last file, the rename its last step.
2. One process makes an image, others wait for it. What a dead one left half made is removed by the next that holds the lock.
3. A leased image is never removed. Who removes holds the lease file exclusively while the folder loses its name; who leases looks, with the
   lock in hand, whether the file is still the one at that path, and else finds the image gone.
4. A failure of any kind leaves nothing half made: the bytes are free again before the error is told.
5. Only what has a digest for a name is touched. The store may lie in a folder with other things.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.failpoints import failpoint
from pipeline.file_systems import file_system_of
from pipeline.folders import make_own_folder
from workers.sandbox.errors import BadImage, ImageError
from workers.sandbox.images.entries import BadArchive
from workers.sandbox.images.lease import ImageLease
from workers.sandbox.images.locks import Say, exclusive, exclusive_if_free, is_same_file, say_nothing
from workers.sandbox.images.records import DIGEST, Contents, ImageKind, TreeRecord, read_record, write_json
from workers.sandbox.images.tree_writer import Written
from workers.sandbox.images.trees import differences, list_tree, remove_tree

NODE_SETTING = "ROLLSTREAM_IMAGE_NODE_DIR"
_NEW, _TRASH, _TEMPORARY, _LOCKS = ".new-", ".trash-", ".tmp-", ".locks"
_LEFTOVER = re.compile(r"\.new-[0-9a-f]{64}|\.trash-[0-9a-f]{64}-[0-9a-f]{8}|\.tmp-[0-9a-f]{16}")
_TEMPORARY_NAME = re.compile(r"\.tmp-[0-9a-f]{16}")

Fill = Callable[[Path], tuple[Contents, Written]]
"""Puts an image's files into an empty folder, and says what is known of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """One extracted image."""

    record: TreeRecord
    used_s: float
    """Last use, seconds since the epoch."""
    is_leased: bool


class NodeStore:
    """The images of one node.

    Args:
        folder: on a disk of this node; made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def open(self) -> None:
        """Makes the folder, and refuses one that machines share: locks hold on one machine, and overlays need a local disk.

        Raises:
            FolderError: it is not ours, or cannot be made.
            ImageError: it is on a network file system.
        """
        found = file_system_of(self.folder)
        if found.is_network:
            why = (
                f"the node's store {self.folder} is on a network file system ({found.name}): set {NODE_SETTING} to a folder on a local disk"
            )
            raise ImageError("store", why)
        make_own_folder(self.folder, NODE_SETTING)
        (self.folder / _LOCKS).mkdir(mode=0o700, exist_ok=True)

    # -- using ------------------------------------------------------------------------------------------------------------------------

    def lease(self, name: str, digest: str) -> ImageLease | None:
        """The lease of an image that is here; None when it is not."""
        path = self.folder / digest
        try:
            descriptor = os.open(path / "lease", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # whoever has it exclusively is about to rename the folder, and waits for nothing
            failpoint("image_leased")
            record = read_record(path / "meta.json", TreeRecord) if is_same_file(descriptor, path / "lease") else None
            if record is None:
                os.close(descriptor)
                return None
            with contextlib.suppress(OSError):  # a disk that went read-only: the image can be used all the same
                os.utime(path / "used")
        except FileNotFoundError:
            os.close(descriptor)
            return None
        except ValueError as error:
            os.close(descriptor)
            raise ImageError(name, f"{error}: rollstream image check, then remove it with rollstream image prune --damaged") from error
        except BaseException:
            os.close(descriptor)
            raise
        return ImageLease(name=name, digest=digest, root=path / "rootfs", env=record.env, workdir=record.workdir, descriptor=descriptor)

    def find(self, digest: str) -> TreeRecord | None:
        """What is here of that digest."""
        try:
            return read_record(self.folder / digest / "meta.json", TreeRecord)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def images(self) -> list[StoredImage]:
        """All complete images, the one that was not used for longest first."""
        found = []
        for digest in self._digests():
            record = self.find(digest)
            if record is None:
                continue
            path = self.folder / digest
            with contextlib.suppress(FileNotFoundError):
                found.append(StoredImage(record=record, used_s=(path / "used").stat().st_mtime, is_leased=self._is_leased(path)))
        return sorted(found, key=lambda image: image.used_s)

    # -- making -----------------------------------------------------------------------------------------------------------------------

    def make(
        self, name: str, digest: str, kind: ImageKind, source: str, fill: Fill, say: Say = say_nothing, *, again: bool = False
    ) -> TreeRecord:
        """The image of that digest, made by `fill` unless it is here.

        Args:
            again: also when it is here: it gives way when the new one is complete, not before.

        Raises:
            BadImage: what it is made of is damaged, or no image may have it.
            ImageError: the disk is full, or something could not be read.
        """
        with exclusive(self._lock(digest), say):
            failpoint("image_locked")
            there = self.find(digest)
            if there is not None and not again:
                return there
            new = self.folder / f"{_NEW}{digest}"
            remove_tree(new)
            if there is None and (self.folder / digest).exists():  # a name without a meta.json: nothing that this store made complete
                trash = self._condemn(digest)
                if trash is not None:
                    remove_tree(trash)
            try:
                with self._troubles(name):
                    record = self._fill(new, TreeRecord(digest=digest, kind=kind, source=source, tree="", size_bytes=0, entries=0), fill)
                    old = self._condemn(digest) if there is not None else None
                    if there is not None and old is None:
                        raise ImageError(name, "it is in use and cannot be replaced now")
                    new.rename(self.folder / digest)
            except BaseException:
                remove_tree(new)
                if self.find(digest) is None:
                    self._lock(digest).unlink(missing_ok=True)  # who waits for it looks whether it is still there
                raise
            if old is not None:
                remove_tree(old)
            failpoint("image_made")
            return record

    def _fill(self, new: Path, record: TreeRecord, fill: Fill) -> TreeRecord:
        began = time.monotonic()
        root = new / "rootfs"
        new.mkdir(mode=0o700)
        root.mkdir(mode=0o755)
        contents, written = fill(root)
        failpoint("image_filled")
        listing = list_tree(root)
        (new / "listing.gz").write_bytes(gzip.compress(listing.lines, compresslevel=1, mtime=0))
        for name in ("lease", "used"):
            (new / name).touch(mode=0o600)
        record = replace(
            record,
            tree=listing.digest,
            size_bytes=listing.size_bytes,
            entries=listing.entries,
            env=dict(contents.env),
            workdir=contents.workdir,
            special_left_out=written.special_left_out,
            bits_dropped=written.bits_dropped,
            took_s=round(time.monotonic() - began, 3),
            at_s=time.time(),
        )
        write_json(new / "meta.json", record)
        failpoint("image_described")
        return record

    @contextlib.contextmanager
    def _troubles(self, name: str) -> Iterator[None]:
        with troubles(name, self.folder):
            yield

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """A folder for as long as the block runs; after a `kill -9` the next sweep removes it."""
        path = self.folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        lock = self.folder / _LOCKS / path.name
        with exclusive(lock):
            path.mkdir(mode=0o700)
            try:
                yield path
            finally:
                remove_tree(path)
                lock.unlink(missing_ok=True)

    # -- removing ---------------------------------------------------------------------------------------------------------------------

    def remove(self, digest: str) -> bool:
        """Removes an image that nobody leases and nobody makes; False when somebody does. Gone already counts as removed."""
        with exclusive_if_free(self._lock(digest)) as is_ours:
            trash = self._condemn(digest) if is_ours else None
            if trash is None:
                return False
            self._lock(digest).unlink(missing_ok=True)
        remove_tree(trash)  # seconds for a large tree, for which nobody has to wait: it has lost its name
        return True

    def _condemn(self, digest: str) -> Path | None:
        """Takes the name from an image that nobody leases; answers where it is now."""
        path = self.folder / digest
        trash = self.folder / f"{_TRASH}{digest}-{secrets.token_hex(4)}"
        try:
            descriptor = os.open(path / "lease", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = -1
        try:
            if descriptor >= 0:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
            failpoint("image_condemned")
            with contextlib.suppress(FileNotFoundError):
                path.rename(trash)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        failpoint("image_trashed")
        return trash

    def sweep(self) -> int:
        """Removes what dead processes left half made or half removed; how many folders that were."""
        swept = 0
        for path in self._leftovers():
            digest = path.name if path.name.startswith(_TEMPORARY) else path.name.removeprefix(_NEW).removeprefix(_TRASH)[:64]
            if path.name.startswith(_TRASH):
                remove_tree(path)  # nobody's; who is removing it now does not mind
                swept += 1
                continue
            with exclusive_if_free(self._lock(digest)) as is_ours:
                if is_ours:
                    remove_tree(path)
                    swept += 1
        for lock in (self.folder / _LOCKS).iterdir():
            is_ours_by_name = DIGEST.fullmatch(lock.name) or _TEMPORARY_NAME.fullmatch(lock.name)
            if is_ours_by_name and not (self.folder / lock.name).exists():
                with exclusive_if_free(lock) as is_ours:
                    if is_ours and not (self.folder / lock.name).exists():
                        lock.unlink(missing_ok=True)
        return swept

    # -- checking ---------------------------------------------------------------------------------------------------------------------

    def damage(self, digest: str) -> list[str]:
        """What is wrong with an image, in words; empty when its files are those that were extracted.

        Reads every byte of it. An image that is being removed meanwhile is no damage.
        """
        path = self.folder / digest
        try:
            record = read_record(path / "meta.json", TreeRecord)
        except (FileNotFoundError, ValueError) as error:
            return [f"meta.json: {error}"] if path.exists() else []
        lease = self.lease("check", digest)
        if lease is None:
            return []
        with lease:
            try:
                found = list_tree(lease.root)
            except OSError as error:
                return [f"cannot be read: {error}"]
            if found.digest == record.tree:
                return []
            try:
                expected = gzip.decompress((path / "listing.gz").read_bytes())
            except (OSError, EOFError) as error:
                return [f"its files are not those of its digest; listing.gz, which would say which, cannot be read: {error}"]
            return list(differences(expected, found.lines)) or ["listing.gz is not the listing of its digest"]

    # -- names ------------------------------------------------------------------------------------------------------------------------

    def _lock(self, digest: str) -> Path:
        return self.folder / _LOCKS / digest

    def _digests(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self.folder) if DIGEST.fullmatch(name)]
        return []

    def _leftovers(self) -> list[Path]:
        return [path for path in sorted(self.folder.iterdir()) if _LEFTOVER.fullmatch(path.name)]

    def _is_leased(self, path: Path) -> bool:
        descriptor = os.open(path / "lease", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


@contextlib.contextmanager
def troubles(name: str, folder: Path) -> Iterator[None]:
    """Around what reads and writes files of an image: its errors, as ours."""
    try:
        yield
    except BadArchive as error:
        raise BadImage(name, str(error)) from error
    except OSError as error:
        raise ImageError(name, _words(error, folder)) from error


def _words(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = "the disk is full" if error.errno == errno.ENOSPC else "the quota is used up"
        return f"{full} at {folder}; nothing half made was kept. Make room (rollstream image prune), or set {NODE_SETTING}"
    return str(error)
