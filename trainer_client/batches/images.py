"""Images that a model saw, as rows name them: where they stand and what they are, from the record; their files from the store when asked
for.

A trainer's processor makes of a file what the engine's made of it: as many placeholder tokens as the row has for it. Files go with the ack
of their step, as bodies do, so they are read before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pipeline.blobs import IMAGE, BlobStore, DamagedBlob, image_kind
from pipeline.errors import InvalidRequest
from pipeline.messages import Blob, Segment, SegmentImage
from trainer_client.batches.bad_trajectory import BadTrajectory

if TYPE_CHECKING:
    from trainer_client.batches.rollout import Rollout

FIELD = "images"


@dataclass(frozen=True, slots=True)
class RowImage:
    """An image in a row."""

    start: int
    """First of its placeholder tokens, as an index into the row."""
    end: int
    """One past the last."""
    media_type: str
    width: int
    """Pixels."""
    height: int
    blob: Blob
    job: str
    store: BlobStore | None = field(repr=False, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal: equal ones are one image."""
        return self.blob.digest

    def content(self) -> bytes:
        """The file. It blocks: make many in a thread.

        Raises:
            InvalidRequest: rollouts were read without images.
            BlobMissing: its step was acked.
            DamagedBlob: it is not what the record says.
            BlobStoreAway
        """
        if self.store is None:
            raise InvalidRequest(f"{self.job} was read without images: ask with images=True", field=FIELD)
        content = self.store.get(self.blob, self.job).tobytes()
        try:
            kind = image_kind(content)
        except ValueError as error:
            raise DamagedBlob(self.blob.uri, str(error)) from error
        if (kind.media_type, kind.width, kind.height) != (self.media_type, self.width, self.height):
            raise DamagedBlob(self.blob.uri, f"it is {kind}, and the record says {self.media_type}, {self.width} x {self.height}")
        return content


def images_in(rollout: Rollout, segment: Segment) -> tuple[RowImage, ...]:
    """The images of a segment, in order."""
    return tuple(
        RowImage(image.start, image.end, image.media_type, image.width, image.height, image.blob, rollout.job, rollout.blobs)
        for image in segment.images
    )


def contents(images: Sequence[RowImage]) -> list[bytes]:
    """Their files, each read once however often it stands there; as `RowImage.content`."""
    found: dict[str, bytes] = {}
    for image in images:
        if image.digest not in found:
            found[image.digest] = image.content()
    return [found[image.digest] for image in images]


def check_images(job: str, number: int, segment: Segment) -> None:
    """Whether a segment's images stand where images can, and each of its placeholders is an image's.

    Raises:
        BadTrajectory
    """
    last, tokens = 0, len(segment.token_ids)
    covered = np.zeros(tokens, np.bool_)
    kinds: set[int] = set()
    for image in segment.images:
        _check_record(job, number, image)
        if not last <= image.start < image.end <= tokens:
            raise BadTrajectory(job, f"segment {number} has an image at tokens {image.start:,} to {image.end:,}, where none can stand")
        if segment.sampled_mask[image.start : image.end].any():
            raise BadTrajectory(job, f"segment {number} has an image on tokens {image.start:,} to {image.end:,}, which the model wrote")
        covered[image.start : image.end] = True
        kinds.add(int(segment.token_ids[image.start]))
        last = image.end
    alone = np.isin(segment.token_ids, list(kinds)) & ~covered
    if alone.any():
        at = int(np.argmax(alone))
        raise BadTrajectory(job, f"token {at:,} of segment {number} stands for an image, and there is none")


def _check_record(job: str, number: int, image: SegmentImage) -> None:
    blob = image.blob
    if blob.name != IMAGE or blob.dtype != "uint8" or blob.shape != (blob.n_bytes,):
        raise BadTrajectory(job, f"segment {number} names an image as {blob.name[:40]} {blob.dtype[:40]} {list(blob.shape)[:8]}")


__all__ = ["RowImage", "check_images", "contents", "images_in"]
