"""Images on their way to a model: files, what the model's server makes of them, and where they stand in a prompt."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pipeline.blobs import ImageKind, image_kind
from pipeline.messages import Blob


@dataclass(frozen=True, slots=True)
class PromptImage:
    """The file of an image, judged by its header."""

    content: bytes
    kind: ImageKind
    digest: str
    """SHA-256 of the file, in hexadecimal."""

    @classmethod
    def of(cls, content: bytes) -> PromptImage:
        """The image in some bytes.

        Raises:
            BadImage
        """
        return cls(content, image_kind(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage:
    """What a server made of an image: enough to show it to any server of the same model."""

    token: int
    """The placeholder."""
    n_tokens: int
    """How often it stands for this image."""
    around: tuple[int, int]
    """Tokens of the server's own template before and behind the placeholders; -1 = none."""
    name: str
    """The server's hash of it, by which prefix caches tell images apart."""
    tensors: str
    """Base64, as the server wants them back; nobody looks into it."""


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An image that was kept and that a model can be shown."""

    kind: ImageKind
    blob: Blob
    read: ReadImage

    def __str__(self) -> str:
        """For people, in the place of the image."""
        return f"[{self.kind}, sha256 {self.blob.digest[:12]}]"


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image in a prompt."""

    start: int
    """Index of its first placeholder."""
    image: SeenImage

    @property
    def end(self) -> int:
        """One past its last."""
        return self.start + self.image.read.n_tokens


@runtime_checkable
class ReadsImages(Protocol):
    """A `Model` that can be shown images."""

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the model's server makes of it.

        Raises:
            Unsupported: this server takes no images beside ids.
            ModelError: as a call.
        """
        ...


__all__ = ["PlacedImage", "PromptImage", "ReadImage", "ReadsImages", "SeenImage"]
