"""Images of a saved trajectory: files beside it, by their digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.blobs import BlobError, BlobStore, DamagedBlob, image_kind
from pipeline.messages import Blob, Trajectory

SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp"}


def images_of(trajectory: Trajectory) -> dict[str, Blob]:
    """The blobs of its images, each once, by digest."""
    return {image.blob.digest: image.blob for segment in trajectory.segments for image in segment.images}


def save_images(trajectory: Trajectory, job: str, folder: Path, store: BlobStore) -> Iterator[tuple[Path, str]]:
    """Writes the images of a trajectory, and tells of each its path and, where it cannot be had, why.

    Args:
        folder: made when there is something to write.

    Raises:
        OSError: it cannot be written there.
    """
    for digest, blob in images_of(trajectory).items():
        try:
            content = store.get(blob, job).tobytes()
            try:
                suffix = SUFFIXES[image_kind(content).media_type]
            except ValueError as error:
                raise DamagedBlob(blob.uri, str(error)) from error
        except BlobError as error:
            yield Path(digest), str(error)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{digest}{suffix}"  # of what was read and checked: 64 digits of hexadecimal
        path.write_bytes(content)
        yield path, ""


__all__ = ["images_of", "save_images"]
