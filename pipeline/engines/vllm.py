"""Control of a vLLM server. Most of it is there only in its development mode (`VLLM_SERVER_DEV_MODE=1`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pipeline.engines.control import HEALTH_TIMEOUT_S, Health, PauseMode, looked
from pipeline.engines.errors import InvalidResponse, Refused, Unsupported
from pipeline.engines.exchange import ABSENT, CONTROL_TIMEOUT_S, Exchange, together
from pipeline.engines.metrics import samples_of

Endpoint = Literal["generate", "completions"]
"""The two ways vLLM samples from given ids."""
ABORT_PATHS = ("/inference/v1/abort_requests", "/abort_requests")
GENERATE_PREFIX = "generate-tokens-"
"""vLLM aborts by the id it made, which is ours with a prefix; a bare id answers 200 and does nothing."""
COMPLETIONS_PREFIX = "cmpl-"
RUNNING, WAITING, KV_USED = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
STARTED = "process_start_time_seconds"
DEV_MODE = "start vLLM with VLLM_SERVER_DEV_MODE=1"


class VllmControl:
    """One server, over connections that the caller opens and closes."""

    def __init__(self, http: Exchange) -> None:
        self._http = http
        self.url = http.url

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling; the cache is cleared so that nothing old meets new weights. With `wait` this takes as long as the calls do."""
        query = {"mode": mode, "clear_cache": "true"}
        await self._command("pause", "/pause", query=query, timeout_s=None if mode == "wait" else CONTROL_TIMEOUT_S)

    async def resume(self) -> None:
        """Sample again."""
        await self._command("resume", "/resume")

    async def set_version(self, version: str) -> bool:
        """Label the loaded weights; False on a server that keeps no label."""
        return await self._http.takes("/update_weight_version", {"new_version": version})

    async def version(self) -> str:
        """The label of the loaded weights; empty when the server does not report one."""
        match await self._http.get_if_there("/weight_info"):
            case None:
                return ""
            case {"weight_version": str(version)} if version:
                return version
            case other:
                raise InvalidResponse("version", f"expected a weight_version, got {other!r:.80}", server=self.url)

    async def reset_cache(self) -> bool:
        """Forget cached prefixes; False when running calls hold them."""
        payload = await self._command("forget its prefix cache", "/reset_prefix_cache")
        return not (isinstance(payload, dict) and payload.get("success") is False)

    async def abort(self, names: Sequence[str]) -> bool:
        """End calls, by whichever of the two endpoints they came."""
        ids = [id_ for name in names for endpoint in get_args(Endpoint) for id_ in abort_ids(endpoint, name)]
        if not ids:  # an empty list of ids would abort every call of the server
            return True
        for path in ABORT_PATHS:
            if await self._http.takes(path, {"request_ids": ids}):
                return True
        return False

    async def health(self) -> Health:
        """One look: four requests at once, two on a server without development routes. One without `/metrics`, which a proxy may hide, is
        well, too; how busy it is nobody knows.

        Anything but a 200 of `/health` within its time is `alive=False`, with what came as the detail.
        """
        return await looked(self._look(), kind="vllm", within_s=HEALTH_TIMEOUT_S)

    async def _look(self) -> Health:
        _, paused, version, page = await together(
            self._http.get("/health", parse=False),
            self._http.get_if_there("/is_paused"),
            self.version(),
            self._http.get_if_there("/metrics", parse=False),
        )
        samples = samples_of(page, (RUNNING, WAITING, KV_USED, STARTED))
        if not samples[RUNNING] and await self._http.get_if_there("/version") is None:
            raise InvalidResponse("kind", "no vLLM answers here any more", server=self.url)
        return Health(
            alive=True,
            kind="vllm",
            paused=isinstance(paused, dict) and paused.get("is_paused") is True,
            tells_pause=paused is not None,
            version=version,
            running=int(sum(samples[RUNNING])),
            waiting=int(sum(samples[WAITING])),
            kv_used=max(samples[KV_USED], default=-1.0),  # of several engines the fullest begins to preempt
            started=f"{samples[STARTED][0]:.3f}" if samples[STARTED] else "",
        )

    async def _command(
        self, what: str, path: str, *, query: Mapping[str, str] | None = None, timeout_s: float | None = CONTROL_TIMEOUT_S
    ) -> object:
        try:
            return await self._http.command(path, query=query, timeout_s=timeout_s)
        except Refused as error:
            if error.status in ABSENT:
                raise Unsupported(self.url, what, DEV_MODE, status=error.status) from error
            raise


def abort_ids(endpoint: Endpoint, name: str) -> list[str]:
    """The names under which the server knows a call of ours."""
    if endpoint == "generate":
        return [GENERATE_PREFIX + name]
    return [f"{COMPLETIONS_PREFIX}{name}-0", COMPLETIONS_PREFIX + name]
