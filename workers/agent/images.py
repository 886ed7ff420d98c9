"""The images of one trajectory: each is read by the model's server once and kept once, before the first prompt that shows it is sent.

Invariants:
  1. What a prompt shows is in the store: a record that names an image, the journal's too, names what is there.
  2. Equal files are one blob and one question to the server, however often they are shown.
  3. A placeholder stands in a prompt for an image only: text cannot spell it, and how many there are is the server's word.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pipeline.engines.errors import Unsupported
from pipeline.errors import InvalidRequest
from pipeline.messages import Blob, ChatMessage
from pipeline.prompt_images import MARK
from workers.llm.backend import Model
from workers.llm.images import PromptImage, ReadImage, ReadsImages, SeenImage

MAX_SHOWN = 64
"""Images of one trajectory."""
MAX_SENT_BYTES = 256 * 1024 * 1024
"""Of their tensors, which all travel with each call: some seven megapixels of Qwen2.5-VL."""
KeepImage = Callable[[PromptImage, int], Awaitable[Blob]]
"""Keeps the file of an image; the number tells it from others of the trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMessage(ChatMessage):
    """A message with images, as its author gives it."""

    images: tuple[tuple[int, PromptImage], ...]
    """Each with the index into `content` before which it stands; in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage(ChatMessage):
    """A message with images that the model's server has read, as a renderer takes it."""

    images: tuple[tuple[int, SeenImage], ...]

    def for_people(self) -> str:
        """Its text, with what each image is in its place."""
        pieces, at = [], 0
        for place, image in self.images:
            pieces += [self.content[at:place], str(image)]
            at = place
        return "".join([*pieces, self.content[at:]])


def told(message: ChatMessage) -> str:
    """The text of a message for people."""
    return message.for_people() if isinstance(message, ShownMessage) else message.content


def with_images(messages: Sequence[ChatMessage], images: Sequence[PromptImage]) -> list[ChatMessage]:
    """Messages with the images of their row: where `<image>` stands in those of users, or before the text of the first user's.

    Raises:
        InvalidRequest: there are other numbers of marks and images, or no user speaks.
    """
    users = [number for number, message in enumerate(messages) if message.role == "user"]
    marks = sum(messages[number].content.count(MARK) for number in users)
    if not users or marks not in (0, len(images)):
        expected = "a user's message to show them in" if not users else f"as many images as {MARK} in the text, or none of those"
        raise InvalidRequest(f"expected {expected}, got {len(images)} images and {marks} marks", field="images")
    found, left = list(messages), list(images)
    for number in users if marks else users[:1]:
        text, placed = "", []
        pieces = messages[number].content.split(MARK)
        if not marks:
            pieces, placed, left = pieces[:1], [(0, image) for image in left], []
        for piece in pieces[:-1]:
            text += piece
            placed.append((len(text), left.pop(0)))
        if placed:
            found[number] = ImageMessage(role="user", content=text + pieces[-1], images=tuple(placed))
    return found


class ImageReader:
    """Reads and keeps the images of one trajectory.

    Args:
        model: its server.
        keep: puts a file into the store.
        max_sent_bytes: of the tensors of all images.
    """

    def __init__(self, model: Model, keep: KeepImage, *, max_sent_bytes: int = MAX_SENT_BYTES) -> None:
        self._model = model
        self._keep = keep
        self._max_sent_bytes = max_sent_bytes
        self._seen: dict[str, SeenImage] = {}
        self._shown = 0
        self._sent_bytes = 0

    async def shown(self, message: ImageMessage) -> ShownMessage:
        """The message as a renderer takes it.

        Raises:
            InvalidRequest: there is no room for its images.
            Unsupported: the server takes none.
            ModelError, BlobError
        """
        images = []
        for place, image in message.images:
            seen = await self.see(image)
            if seen is None:
                raise InvalidRequest(
                    f"expected at most {MAX_SHOWN} images of a dialogue, and {self._max_sent_bytes:,} bytes of their tensors: show fewer, "
                    "or scale them down",
                    field="images",
                )
            images.append((place, seen))
        return ShownMessage(role=message.role, content=message.content, images=tuple(images))

    async def see(self, image: PromptImage) -> SeenImage | None:
        """An image that is to be shown once more; None when the dialogue has no room for it. As `shown`."""
        if self._shown == MAX_SHOWN:
            return None
        known = self._seen.get(image.digest)
        read = await self._read(image) if known is None else known.read
        if self._sent_bytes + len(read.tensors) > self._max_sent_bytes:
            return None
        if known is None:
            known = self._seen[image.digest] = SeenImage(image.kind, await self._keep(image, len(self._seen)), read)
        self._shown += 1
        self._sent_bytes += len(read.tensors)
        return known

    async def _read(self, image: PromptImage) -> ReadImage:
        if not isinstance(self._model, ReadsImages):
            raise Unsupported("the model's server", "be shown images", "use vLLM with --enable-scale-out, or set chat.images to false")
        return await self._model.read_image(image)


__all__ = ["MAX_SENT_BYTES", "MAX_SHOWN", "ImageMessage", "ImageReader", "KeepImage", "ShownMessage", "told", "with_images"]
