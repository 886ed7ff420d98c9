"""Which kind of server is behind an address, found by asking, and its control.

Nobody has to configure it, and it may change: a server is stopped, another is started at its address. So what was found is forgotten when a
connection broke, when a look went wrong, and when a route is not there.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pipeline.engines.control import EngineControl, EngineKind, Health, PauseMode, looked
from pipeline.engines.errors import InvalidResponse, Unsupported
from pipeline.engines.exchange import Exchange, together
from pipeline.engines.sglang import SglangControl, model_info
from pipeline.engines.vllm import VllmControl

Answer = TypeVar("Answer")
LOOK_TIMEOUT_S = 6.0
"""A look with the question which kind of server it is; below the time for which a keeper has the look to itself."""
KIND_FOR_S = 30.0
"""Asked again after that: between two of our connections another server may have taken the address, unseen."""


async def engine_kind(http: Exchange) -> EngineKind:
    """Ask anew. An OpenAI-like server that says no version counts as vLLM: the rest is found by trying.

    Raises:
        InvalidResponse: neither.
        ModelError: nobody there, or it does not talk to us.
    """
    http.ask_routes_anew()
    info, version = await together(model_info(http), http.get_if_there("/version"))
    if info is not None:
        return "sglang"
    match version:
        case {"version": str()}:
            return "vllm"
    match await http.get_if_there("/v1/models"):
        case {"data": list()}:
            return "vllm"
    raise InvalidResponse("kind", "expected vLLM (/version, /v1/models) or SGLang (/model_info), found neither", server=http.url)


def connect_control(http: Exchange) -> EngineControl:
    """The control of whatever server is there, over connections that the caller opens and closes. Asks at its first use."""
    return _FoundControl(http)


class _FoundControl:
    """Asks which kind it is, then is that kind's control."""

    def __init__(self, http: Exchange) -> None:
        self._http = http
        self._found: EngineControl | None = None
        self._breaks = http.breaks
        self._until_s = 0.0

    async def pause(self, mode: PauseMode) -> None:
        await self._through(lambda control: control.pause(mode))

    async def resume(self) -> None:
        await self._through(lambda control: control.resume())

    async def set_version(self, version: str) -> bool:
        labelled = await self._through(lambda control: control.set_version(version))
        if not labelled:
            self._found = None
        return labelled

    async def version(self) -> str:
        return await self._through(lambda control: control.version())

    async def reset_cache(self) -> bool:
        return await self._through(lambda control: control.reset_cache())

    async def abort(self, names: Sequence[str]) -> bool:
        return await self._through(lambda control: control.abort(names))

    async def health(self) -> Health:
        health = await looked(self._through(lambda control: control.health()), kind="", within_s=LOOK_TIMEOUT_S)
        if not health.alive:
            self._found = None
        return health

    async def _through(self, call: Callable[[EngineControl], Awaitable[Answer]]) -> Answer:
        breaks = self._http.breaks
        if self._found is None or breaks != self._breaks or time.monotonic() >= self._until_s:
            kind = await engine_kind(self._http)
            self._found = SglangControl(self._http) if kind == "sglang" else VllmControl(self._http)
            self._breaks, self._until_s = breaks, time.monotonic() + KIND_FOR_S
        try:
            return await call(self._found)
        except (InvalidResponse, Unsupported):
            self._found = None
            raise
