"""What differs between servers when tokens are asked of them: how a call is named and written, how its answer is read, how it is aborted.

A `Wire` is made by asking its server what it can do (`connect.py`). It keeps nothing about calls: those in flight, their time and their
retries are the same for all (`calls.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.blobs import ExpertRows
from pipeline.engines.errors import InvalidResponse
from workers.llm.backend import Caps, Finish, GenRequest, LogprobsShape, Span
from workers.llm.images import PromptImage, ReadImage

Body = dict[str, Any]
"""JSON object; Any because it is a tree of plain values read or written at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A checked response body."""

    output_ids: list[int]
    logprobs: list[float]
    finish: Finish
    stop_reason: int | str | None
    spans: tuple[Span, ...] | None
    """None: this server has none."""
    cached_tokens: int | None
    request_id: str
    shape: LogprobsShape
    experts: ExpertRows | None = None


def with_spans_as_found(answer: Answer, caps: Caps) -> Answer:
    """The answer, when it has spans wherever its server does.

    Raises:
        InvalidResponse: the tokens' versions were left out; nobody else knows them.
    """
    if answer.spans is None and answer.output_ids and caps.has_spans:
        raise InvalidResponse("spans", "the server said which weights sampled before, and does not now")
    return answer


class EngineFailed(Exception):
    """The engine's own word, inside a 200, for a fault of its own: no contradiction, and another try may be fine."""


class Wire(Protocol):
    """How one server is asked for tokens."""

    @property
    def caps(self) -> Caps:
        """What the server can do."""
        ...

    @property
    def path(self) -> str:
        """The route of a call."""
        ...

    def headers(self, request: GenRequest) -> Mapping[str, str]:
        """Beside the body."""
        ...

    def write(self, request: GenRequest, name: str) -> Body:
        """The body of a call.

        Args:
            name: ours for it, by which it is aborted; it differs from the request's id when that is sent again.
        """
        ...

    def read(self, payload: object, request: GenRequest, name: str) -> Answer:
        """The checked answer.

        Raises:
            InvalidResponse: any check failed.
            EngineFailed: the engine says that it failed.
        """
        ...

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the server makes of an image.

        Raises:
            Unsupported: it takes none beside ids.
            InvalidResponse, ModelError
        """
        ...

    async def abort(self, names: Sequence[str]) -> None:
        """End calls by the names they were written with. Only where `caps.abort_path` is not empty.

        Raises:
            ModelError
        """
        ...
