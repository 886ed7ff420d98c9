"""A model that says what it is told, over a real wire: the scripted server behind a real backend, with the ids of each call given.

For whoever must see ids of their own choosing (non-canonical ones, halves of characters, ones without a logprob) go the whole way that
a model's ids go: sampled by a server, answered over HTTP, checked, recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workers.llm.backend import Caps, GenRequest, GenResult, Model

AS_SAMPLED: tuple[object, ...] = ("as sampled",)


@dataclass(frozen=True, slots=True)
class Dictation:
    """What one call says. A budget that is smaller cuts it; one without an end token gets the end token if there is room."""

    ids: Sequence[int]
    logprobs: Sequence[object] | None = AS_SAMPLED
    """JSON values to answer in place of the engine's logprobs; None = none at all."""


class DictatedModel:
    """A backend whose calls say the next dictation each; after the last one its own policy speaks.

    Args:
        backend: of a scripted server, or of an engine whose logits processor takes a `script`.
    """

    def __init__(self, backend: Model, dictations: Iterable[Dictation | Sequence[int]] = ()) -> None:
        self.requests: list[GenRequest] = []
        """Every request, in order."""
        self.results: list[GenResult] = []
        """Every believed answer, in order."""
        self._backend = backend
        self._dictations = deque(dictations)

    def dictate(self, *dictations: Dictation | Sequence[int]) -> None:
        """What the calls after those that are dictated say."""
        self._dictations.extend(dictations)

    async def probe(self) -> Caps:
        """As the backend."""
        return await self._backend.probe()

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """The next dictation, said by the server."""
        if self._dictations:
            said = self._dictations.popleft()
            dictation = said if isinstance(said, Dictation) else Dictation(said)
            extra: dict[str, object] = {"script": [*dictation.ids]}
            if dictation.logprobs is not AS_SAMPLED:
                extra["logprobs"] = None if dictation.logprobs is None else [*dictation.logprobs]
            request = replace(request, extra_args={**(request.extra_args or {}), **extra})
        self.requests.append(request)
        result = await self._backend.generate(request, timeout_s=timeout_s)
        self.results.append(result)
        return result

    async def abort(self, request_id: str) -> None:
        """As the backend."""
        await self._backend.abort(request_id)
