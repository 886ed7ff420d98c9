"""Control of a vLLM server. Most of it is there only in its development mode (`VLLM_SERVER_DEV_MODE=1`)."""

from __future__ import annotations

import asyncio
import re

from pipeline.engines.control import Health, PauseMode
from pipeline.engines.errors import InvalidResponse, ModelError
from pipeline.engines.exchange import CONTROL_TIMEOUT_S, Exchange

HEALTH_TIMEOUT_S = 5.0


class VllmControl:
    """One server, over connections that the caller opens and closes."""

    def __init__(self, http: Exchange) -> None:
        self._http = http
        self.url = http.url

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling; the cache is cleared so that nothing old meets new weights. With `wait` this takes as long as the calls do."""
        query = {"mode": mode, "clear_cache": "true"}
        await self._http.post("/pause", query=query, timeout_s=None if mode == "wait" else CONTROL_TIMEOUT_S, parse=False)

    async def resume(self) -> None:
        """Sample again."""
        await self._http.post("/resume", parse=False)

    async def set_version(self, version: str) -> bool:
        """Label the loaded weights; False on a server that keeps no label."""
        return await self._http.takes("/update_weight_version", {"new_version": version})

    async def version(self) -> str:
        """The label of the loaded weights; empty when the server does not report one."""
        payload = await self._http.get_if_there("/weight_info")
        match payload:
            case None:
                return ""
            case {"weight_version": str(version)} if version:
                return version
            case other:
                raise InvalidResponse("version", f"expected a weight_version, got {other!r:.80}", server=self.url)

    async def reset_cache(self) -> bool:
        """Forget cached prefixes; False when running calls hold them."""
        payload = await self._http.post("/reset_prefix_cache", parse=False)
        return not (isinstance(payload, dict) and payload.get("success") is False)

    async def health(self) -> Health:
        """One look. Anything but a 200 of `/health` within its time is `alive=False`, with what came as the detail."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._http.get("/health", parse=False)
                paused = await self._http.get_if_there("/is_paused")
                version = await self.version()
                samples = samples_of(await self._http.get("/metrics", parse=False))
        except TimeoutError:
            return Health(alive=False, detail=f"no answer within {HEALTH_TIMEOUT_S:g} s")
        except ModelError as error:
            return Health(alive=False, detail=str(error))
        started = samples.get("process_start_time_seconds")
        return Health(
            alive=True,
            paused=isinstance(paused, dict) and paused.get("is_paused") is True,
            version=version,
            running=int(samples.get("vllm:num_requests_running", 0)),
            waiting=int(samples.get("vllm:num_requests_waiting", 0)),
            kv_used=samples.get("vllm:kv_cache_usage_perc", -1.0),
            started="" if started is None else f"{started:.3f}",
        )


_SAMPLE = re.compile(r"^((?:vllm:|process_)[a-z_]+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def samples_of(exposition: object) -> dict[str, float]:
    """Sums over labels of the samples of a Prometheus page."""
    totals: dict[str, float] = {}
    for name, value in _SAMPLE.findall(exposition if isinstance(exposition, str) else ""):
        totals[name] = totals.get(name, 0.0) + float(value)
    return totals
