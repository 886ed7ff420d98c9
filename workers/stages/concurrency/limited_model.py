"""A model that is called only while its job has a place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from workers.llm.backend import Caps, GenRequest, GenResult, Model
from workers.llm.images import PromptImage, ReadImage, ReadsImages
from workers.llm.server_check import ServerCheck, ShowsServers
from workers.stages.concurrency.limiter import JobPlace


class PoolModel(Model, ShowsServers, ReadsImages, Protocol):
    """A model that chooses among servers."""


class LimitedModel:
    """Before its first call a held job has no server either: it would be counted as load there, and draw its group after it.

    Args:
        gate, waiting, progress: of the job; see `JobPlace.call`.
    """

    def __init__(
        self,
        model: PoolModel,
        place: JobPlace,
        *,
        gate: Callable[[], None],
        waiting: Callable[[], AbstractContextManager[None]],
        progress: Callable[[float], None],
    ) -> None:
        self._model = model
        self._place = place
        self._waits = (gate, waiting, progress)

    def check_servers(self, check: ServerCheck) -> None:
        """Shows each server to `check` before any call of this job to it."""
        self._model.check_servers(check)

    async def probe(self) -> Caps:
        """What the server can do."""
        async with self._place.call(*self._waits):
            return await self._model.probe()

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the server makes of an image."""
        async with self._place.call(*self._waits):
            return await self._model.read_image(image)

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """One call; the time that it waits for a place is not in its timeout."""
        async with self._place.call(*self._waits):
            result = await self._model.generate(request, timeout_s=timeout_s)
        self._place.took(result.seconds)
        return result

    async def abort(self, request_id: str) -> None:
        """Ends a call at its server."""
        await self._model.abort(request_id)
