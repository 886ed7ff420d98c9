"""The image store of a node: brings images, and gives them to sandboxes.

    pull    a registry ── Apptainer ──> SHARED/sif/<digest>.sif ── first use on a node ──> NODE/<digest>/rootfs
            archive, layout, folder, SIF ────────── read by us ─────────────────────────> NODE/<digest>/rootfs
    lease   a name ──> its digest ──> NODE/<digest>, extracted first where it is not: from the SIF, or from the source if that is on a disk

1. A name means what its record says, and a name without a record means nothing: a sandbox never has another image than its task named.
2. A lease fetches nothing. What it may read is the shared store, and the archive or folder an image came from, if its digest is unchanged.
3. A record is written when the files are there, last.

Everything here blocks; callers use a thread. Several threads and processes may use a store at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipeline.failpoints import failpoint
from pipeline.folders import Folders
from workers.sandbox.errors import BadImage, ImageError, ImageMissing
from workers.sandbox.images.apptainer import Apptainer, find_program
from workers.sandbox.images.budget import Budget, Pruned, keep_within, prune
from workers.sandbox.images.entries import Entries
from workers.sandbox.images.folder_entries import entries_of_folder
from workers.sandbox.images.lease import ImageLease
from workers.sandbox.images.locks import Say, say_nothing
from workers.sandbox.images.names import Source, check_name, source_of
from workers.sandbox.images.node_store import Fill, NodeStore, troubles
from workers.sandbox.images.oci import OciArchive, OciImage
from workers.sandbox.images.records import Contents, ImageKind, NameRecord, TreeRecord
from workers.sandbox.images.settings import GIB, ImageSettings
from workers.sandbox.images.shared_store import SharedStore, digest_of
from workers.sandbox.images.sif import contents_of, find_squashfs, unpack_sif
from workers.sandbox.images.tree_writer import Bounds, TreeWriter, Written
from workers.sandbox.images.trees import list_tree

_LEASE_TRIES = 3
"""An image may be pruned between its extraction and its lease; not again and again."""


class ImageInterrupted(ImageError):
    """Its caller asked for an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageState:
    """One name, and what is where."""

    record: NameRecord
    tree: TreeRecord | None
    """Extracted on this node."""
    has_sif: bool
    is_leased: bool = False
    used_s: float = 0.0


class ImageStore:
    """Images of this node and of the shared store.

    Args:
        shared: names and SIF files; may be on a network file system.
        node: extracted images; on a disk of this node.
        stop: when it is set, what is being brought is given up.
    """

    def __init__(self, shared: Path, node: Path, settings: ImageSettings | None = None, *, stop: threading.Event | None = None) -> None:
        settings = settings or ImageSettings()
        self.settings = settings
        self.shared = SharedStore(shared)
        self.node = NodeStore(node)
        self.budget = Budget(max_bytes=int(settings.budget_gib * GIB), high=settings.high_mark, low=settings.low_mark)
        self.bounds = Bounds(max_bytes=int(min(settings.max_image_gib, settings.budget_gib) * GIB), max_entries=settings.max_entries)
        self.apptainer = Apptainer(find_program(settings.apptainer), self.node.temporary)
        self._stop = stop or threading.Event()

    @classmethod
    def here(cls, settings: ImageSettings | None = None, folders: Folders | None = None, *, stop: threading.Event | None = None) -> Self:
        """The store of this machine's settings, opened.

        Raises:
            FolderError, ImageError: the node's folder cannot be used.
        """
        settings = settings or ImageSettings.load()
        folders = folders or Folders.from_environment()
        store = cls(settings.shared_dir or folders.state / "images", settings.node_dir or folders.scratch / "images", settings, stop=stop)
        store.node.open()
        return store

    # -- using ------------------------------------------------------------------------------------------------------------------------

    def lease(self, name: str, say: Say = say_nothing) -> ImageLease:
        """See `ImageSource.lease`."""
        try:
            record = self.shared.find(name)
        except (OSError, ValueError) as error:
            raise ImageError(name, f"what its name means cannot be read: {error}; rollstream image check says what is damaged") from error
        if record is None:
            raise ImageMissing(name)
        for _ in range(_LEASE_TRIES):
            lease = self.node.lease(name, record.digest)
            if lease is not None:
                return lease
            self.extract(record, say)
        raise ImageError(
            name, f"it was removed {_LEASE_TRIES} times between its extraction and its use: the budget is too small for what runs"
        )

    def extract(self, record: NameRecord, say: Say = say_nothing) -> TreeRecord:
        """Makes an image that is known complete on this node.

        Raises:
            ImageMissing: neither its SIF nor its source can be read from here, or the source is another image now.
            ImageError: it could not be extracted.
        """
        there = self.node.find(record.digest)
        if there is not None:
            return there
        if self.shared.has_sif(record.sif):
            return self._extract_sif(record, say)
        if record.kind == "build":
            raise ImageMissing(record.name, f"this node has not built it, or has removed it (rollstream image build {record.source})")
        if record.kind == "sif":
            raise ImageMissing(record.name, f"its file {self.shared.sif(record.sif)} is gone")
        source = source_of(record.source)
        if not source.path.exists():
            raise ImageMissing(record.name, f"this node does not have it, nor its source {source.path}")
        digest, _, fill = self._reader(record.name, source)
        if digest != record.digest:
            raise ImageMissing(record.name, f"its source {source.path} is another image now")
        return self._make(record.name, digest, record.kind, record.source, fill, say)

    # -- bringing ---------------------------------------------------------------------------------------------------------------------

    def is_here(self, name: str) -> bool:
        """Whether a name is known and its files can be had without fetching anything."""
        record = self.shared.find(name)
        return record is not None and (self.node.find(record.digest) is not None or self.shared.has_sif(record.sif))

    def pull(self, name: str, source: str = "", *, extract: bool = True, share: bool = False, say: Say = say_nothing) -> NameRecord:
        """Brings an image and records its name.

        Args:
            source: where from; empty = the name says it.
            extract: also make it ready on this node, where that is not how it is read anyway.
            share: also pack it into a SIF, for other nodes.

        Raises:
            InvalidRequest: the name or the source cannot be one.
            ImageError: it could not be brought; nothing half made is left.
        """
        check_name(name)
        origin = source_of(source or name)
        if origin.kind == "registry":
            record = self._fetch(name, origin, say)
        elif origin.kind == "sif":
            record = self._copy_sif(name, origin, say)
        else:
            record = self._read(name, origin, say)
        if share and not record.sif:
            record = self.share(record, say)
        if extract and record.sif:
            self.extract(record, say)
        self.shared.record(record)
        return record

    def share(self, record: NameRecord, say: Say = say_nothing) -> NameRecord:
        """Packs an extracted image into a SIF of the shared store; the record says so."""
        with self.node_lease(record) as lease, self.shared.new_file() as file:
            say("packs it for other nodes")
            self.apptainer.pack(record.name, lease.root, file, self.settings.timeout_s, say)
            with troubles(record.name, self.shared.folder):
                sif = self.shared.adopt(file)
        return NameRecord(**{**{name: getattr(record, name) for name in NameRecord.__slots__}, "sif": sif})

    def node_lease(self, record: NameRecord) -> ImageLease:
        """The lease of an image that was just made."""
        lease = self.node.lease(record.name, record.digest)
        if lease is None:
            raise ImageError(record.name, "it was removed before it could be used")
        return lease

    def _fetch(self, name: str, source: Source, say: Say) -> NameRecord:
        with self.shared.new_file() as file:
            say(f"fetches {source.text}")
            self.apptainer.pull(name, source.text, file, self.settings.timeout_s, say, stop=self._stop)
            failpoint("image_fetched")
            if not file.exists():
                raise ImageError(name, f"{self.apptainer.program} ended well and wrote no file")
            return self._adopt(name, source, file)

    def _copy_sif(self, name: str, source: Source, say: Say) -> NameRecord:
        with self.shared.new_file() as file, troubles(name, self.shared.folder):
            say(f"copies {source.path}")
            with source.path.open("rb") as original, file.open("xb") as copy:
                while chunk := original.read(1024 * 1024):
                    self._check_stop(name)
                    copy.write(chunk)
            failpoint("image_fetched")
            return self._adopt(name, source, file)

    def _adopt(self, name: str, source: Source, file: Path) -> NameRecord:
        with troubles(name, self.shared.folder):
            find_squashfs(file)
            size = file.stat().st_size
            digest = self.shared.adopt(file)
        return NameRecord.new(name, digest=digest, kind="sif", source=source.text, contents=Contents(), size_bytes=size, sif=digest)

    def _read(self, name: str, source: Source, say: Say) -> NameRecord:
        kind: ImageKind = "oci" if source.kind == "oci" else "folder"
        digest, contents, fill = self._reader(name, source)
        tree = self._make(name, digest, kind, source.text, fill, say)
        old = self.shared.find(name)
        sif = old.sif if old is not None and old.digest == digest and self.shared.has_sif(old.sif) else ""
        return NameRecord.new(name, digest=digest, kind=kind, source=source.text, contents=contents, size_bytes=tree.size_bytes, sif=sif)

    # -- what fills a tree ------------------------------------------------------------------------------------------------------------

    def _reader(self, name: str, source: Source) -> tuple[str, Contents, Fill]:
        """The digest of a source on disk, and what makes a tree of it."""
        with troubles(name, source.path):
            if source.kind == "folder":
                if not source.path.is_dir():
                    raise BadImage(name, f"{source.path} is no folder")
                return list_tree(source.path).digest, Contents(), self._fill_from_folder(name, source.path)
            archive = OciArchive.at(source.path)
            image = archive.image(source.reference)
            contents = Contents(env=image.env, workdir=image.workdir)
            return image.digest, contents, self._fill_from_layers(name, archive, image, contents)

    def _fill_from_folder(self, name: str, folder: Path) -> Fill:
        def fill(root: Path) -> tuple[Contents, Written]:
            writer = TreeWriter(root, self.bounds)
            writer.apply(self._until_stopped(name, entries_of_folder(folder)))
            return Contents(), writer.written

        return fill

    def _fill_from_layers(self, name: str, archive: OciArchive, image: OciImage, contents: Contents) -> Fill:
        def fill(root: Path) -> tuple[Contents, Written]:
            writer = TreeWriter(root, self.bounds)
            for blob in image.layers:
                with archive.layer(blob, self.bounds) as entries:
                    writer.apply(self._until_stopped(name, entries))
                failpoint("image_layer")
            return contents, writer.written

        return fill

    def _extract_sif(self, record: NameRecord, say: Say) -> TreeRecord:
        path = self.shared.sif(record.sif)

        def fill(root: Path) -> tuple[Contents, Written]:
            if digest_of(path) != record.sif:
                raise BadImage(record.name, f"{path} is damaged: rollstream image pull --refresh {record.name}")
            say("unpacks its SIF")
            written = unpack_sif(record.name, path, root, self.bounds, self.apptainer, self.settings.timeout_s, say, stop=self._stop)
            contents = contents_of(root)
            return Contents(env={**contents.env, **record.env}, workdir=record.workdir or contents.workdir), written

        return self._make(record.name, record.digest, record.kind, record.source, fill, say, coming_bytes=2 * path.stat().st_size)

    def _make(
        self, name: str, digest: str, kind: ImageKind, source: str, fill: Fill, say: Say, *, coming_bytes: int = 0, again: bool = False
    ) -> TreeRecord:
        keep_within(self.node, self.budget, coming_bytes=coming_bytes, keep=frozenset({digest}))
        record = self.node.make(name, digest, kind, source, fill, say, again=again)
        keep_within(self.node, self.budget, keep=frozenset({digest}))
        return record

    def make(
        self, name: str, digest: str, kind: ImageKind, source: str, fill: Fill, say: Say = say_nothing, *, again: bool = False
    ) -> TreeRecord:
        """An image made by the caller, within the budget; `again` as `NodeStore.make` takes it."""
        return self._make(name, digest, kind, source, fill, say, again=again)

    def _until_stopped(self, name: str, entries: Entries) -> Entries:
        for entry in entries:
            self._check_stop(name)
            yield entry

    def _check_stop(self, name: str) -> None:
        if self._stop.is_set():
            raise ImageInterrupted(name, "interrupted; nothing of it was kept")

    # -- looking and cleaning ---------------------------------------------------------------------------------------------------------

    def states(self) -> tuple[list[ImageState], list[str]]:
        """Every name, and what is wrong with the files of the shared store that hold none."""
        here = {image.record.digest: image for image in self.node.images()}
        records, problems = self.shared.names()
        found = []
        for record in records:
            image = here.get(record.digest)
            found.append(
                ImageState(
                    record=record,
                    tree=image.record if image else None,
                    has_sif=self.shared.has_sif(record.sif),
                    is_leased=image.is_leased if image else False,
                    used_s=image.used_s if image else 0.0,
                )
            )
        return found, problems

    def prune(self, *, target_bytes: int | None = None) -> Pruned:
        """Removes what dead processes left, then images down to a size, or to the budget's marks."""
        records, problems = self.shared.names()
        named = None if problems else frozenset(record.sif for record in records)
        swept = self.node.sweep() + self.shared.sweep(named)
        done = keep_within(self.node, self.budget) if target_bytes is None else prune(self.node, target_bytes)
        return Pruned(removed=done.removed, freed_bytes=done.freed_bytes, size_bytes=done.size_bytes, leased=done.leased, swept=swept)

    def damages(self, names: frozenset[str] = frozenset()) -> Iterator[tuple[str, list[str]]]:
        """Reads every byte of the images of some names, or of all: each with what is wrong with it."""
        records, problems = self.shared.names()
        for problem in problems if not names else ():
            yield problem, ["cannot be read"]
        by_digest: dict[str, list[str]] = {}
        for record in records:
            if not names or record.name in names:
                wrong = by_digest.setdefault(record.digest, self.node.damage(record.digest))
                yield record.name, wrong + self._sif_damage(record)
        for name in sorted(names - {record.name for record in records}):
            yield name, [f"not known here: {ImageMissing(name).command}"]
        if not names:
            for image in self.node.images():
                if image.record.digest not in by_digest:
                    yield image.record.digest, self.node.damage(image.record.digest)

    def remove_damaged(self) -> list[str]:
        """Removes extracted images that are not what they were, unless they are in use; their digests. They can be extracted again."""
        return [
            image.record.digest
            for image in self.node.images()
            if self.node.damage(image.record.digest) and self.node.remove(image.record.digest)
        ]

    def _sif_damage(self, record: NameRecord) -> list[str]:
        if not record.sif:
            return []
        path = self.shared.sif(record.sif)
        try:
            return [] if digest_of(path) == record.sif else [f"{path}: its bytes are not those of its digest"]
        except FileNotFoundError:
            return [] if self.node.find(record.digest) else [f"{path}: missing"]
        except OSError as error:
            return [f"{path}: {error}"]
