"""Control of an SGLang server (0.5).

Its pauses are not vLLM's, so ours are made of them:

    keep    `retract`: calls in flight give up their keys and values and go on from their tokens later. Then the cache is flushed, which
            succeeds then only (`in_place` would sample new tokens on keys and values of old weights).
    abort   `abort`: calls return what they have. Then the flush.
    wait    look until nothing runs and nothing waits; a flush succeeds then only. Then `retract`, and a flush for what came in between.

Traps this file knows:
  * `/update_weight_version` aborts every call unless told not to.
  * Before 0.5.7 a pause knows no modes and ignores the one it is told: it aborts. Those versions have `/get_model_info` only.
  * `/health` samples a token, takes a second at least, and fails after 20 s during a pause. A look asks `/model_info`, `/ready` and
    `/v1/loads` instead.
  * While it is paused a call that arrives waits where neither an abort nor a closed connection reaches it. Begin none.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from pipeline.engines.control import HEALTH_TIMEOUT_S, Health, PauseMode, looked
from pipeline.engines.errors import InvalidResponse, Refused, Retryable, Unsupported
from pipeline.engines.exchange import ABSENT, CONTROL_TIMEOUT_S, Exchange, together
from pipeline.engines.metrics import samples_of

ABORT_PATH = "/abort_request"
END = ";"
"""Ends an id on the wire. The scheduler aborts every call whose id *begins* with the one that is named, and `a.1` begins `a.10`."""
INFO_PATHS = ("/model_info", "/get_model_info")
"""The second is its name in older versions."""
RUNNING, WAITING, KV_USED = "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"
FLUSH_AGAIN_S = 0.05
WAIT_AGAIN_S = 0.1
"""While calls finish."""


class SglangControl:
    """One server, over connections that the caller opens and closes."""

    def __init__(self, http: Exchange) -> None:
        self._http = http
        self.url = http.url
        self._started, self._started_over = "", -1
        """What names the server's start, and how many connections had been made when it was asked."""

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling; the cache is cleared so that nothing old meets new weights. With `wait` this takes as long as the calls do."""
        if mode == "keep" and await self._http.get_if_there(INFO_PATHS[0]) is None:
            raise Unsupported(self.url, "keep calls in flight during a pause", "SGLang 0.5.7 can")  # older ones abort whatever is asked
        if mode == "wait":
            await self._until_idle()
        await self._command("pause", "/pause_generation", {"mode": "abort" if mode == "abort" else "retract"})
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                while not await self.reset_cache():  # noqa: ASYNC110  # calls on their way out may hold it for a moment
                    await asyncio.sleep(FLUSH_AGAIN_S)
        except TimeoutError:
            raise Retryable("busy", self.url, f"paused, but its prefix cache not flushed within {CONTROL_TIMEOUT_S:g} s") from None

    async def _until_idle(self) -> None:
        """Returns when nothing runs and nothing waits; the flush proves it. A refused one writes a line into the server's log, so few are
        tried."""
        while True:
            running, waiting, _ = await self._load()
            if not running and not waiting and await self.reset_cache():
                return
            await asyncio.sleep(WAIT_AGAIN_S)

    async def resume(self) -> None:
        """Sample again."""
        await self._command("resume", "/continue_generation", {})

    async def set_version(self, version: str) -> bool:
        """Label the loaded weights; calls in flight go on."""
        return await self._http.takes("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def version(self) -> str:
        """The label of the loaded weights; empty when the server does not report one."""
        return _label_of(await model_info(self._http), self.url)

    async def reset_cache(self) -> bool:
        """Forget cached prefixes; False when running calls hold them, or waiting ones of a server that is not paused."""
        try:
            await self._command("forget its prefix cache", "/flush_cache", {})
        except Refused as error:
            if error.status == 400:
                return False
            raise
        return True

    async def abort(self, names: Sequence[str]) -> bool:
        """End calls, each by a request of its own, all at once."""
        return all(await together(*(self._http.takes(ABORT_PATH, {"rid": wire_id(name)}) for name in names)))

    async def health(self) -> Health:
        """One look: three requests at once, and a fourth when a connection had to be made.

        A server that is not ready counts as paused, also while it starts: it takes calls later. One without `/ready` (before 0.5.21) does
        not say, nor does one before 0.5.19 say when it started: a restart shows in the label, which is that of its command line again.
        """
        return await looked(self._look(), kind="sglang", within_s=HEALTH_TIMEOUT_S)

    async def _look(self) -> Health:
        info, ready, (running, waiting, kv_used) = await together(model_info(self._http), self._is_ready(), self._load())
        version, started = _label_of(info, self.url), await self._start()
        return Health(
            alive=True,
            kind="sglang",
            paused=ready is False,
            tells_pause=ready is not None,
            version=version,
            running=running,
            waiting=waiting,
            kv_used=kv_used,
            started=started,
        )

    async def _is_ready(self) -> bool | None:
        """Whether it takes calls now; None = it does not say."""
        try:
            return None if await self._http.get_if_there("/ready", parse=False) is None else True
        except Retryable as error:
            if error.status == 503:
                return False
            raise

    async def _start(self) -> str:
        """What names the start of the server: how long it took, which is never the same twice.

        It is told among all settings of the server, so it is asked for again only after a connection was made: over those that stand nobody
        else answers.
        """
        if self._started_over != self._http.connections:
            match await self._http.get_if_there("/server_info"):
                case {"startup_time": dict(took)} if took:
                    self._started = hashlib.blake2b(orjson.dumps(took, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
                case _:
                    self._started = ""
            self._started_over = self._http.connections
        return self._started

    async def _load(self) -> tuple[int, int, float]:
        """Calls running, calls waiting, share of the KV cache in use (-1 = it does not say)."""
        match await self._http.get_if_there("/v1/loads?include=core"):
            case {"loads": [dict(), *_] as loads}:
                return (
                    int(sum(_number(load, "num_running_reqs") for load in loads)),
                    int(sum(_number(load, "num_waiting_reqs") for load in loads)),
                    max(_number(load, "token_usage", -1.0) for load in loads),
                )
            case _:
                page = await self._http.get_if_there("/metrics", parse=False)  # there with --enable-metrics
        samples = samples_of(page, (RUNNING, WAITING, KV_USED))
        return int(sum(samples[RUNNING])), int(sum(samples[WAITING])), max(samples[KV_USED], default=-1.0)

    async def _command(self, what: str, path: str, body: Mapping[str, Any]) -> object:
        try:
            return await self._http.command(path, body)
        except Refused as error:
            if error.status in ABSENT:
                raise Unsupported(self.url, what, "a newer SGLang can", status=error.status) from error
            raise


def wire_id(name: str) -> str:
    """The `rid` of a call: no call's is the beginning of another's."""
    return name + END


async def model_info(http: Exchange) -> dict[str, Any] | None:
    """What an SGLang server says of its model; None when this is none."""
    for path in INFO_PATHS:
        info = await http.get_if_there(path)
        if isinstance(info, dict) and isinstance(info.get("model_path"), str):
            return info
    return None


def _label_of(info: dict[str, Any] | None, server: str) -> str:
    match info:
        case {"weight_version": str(version)}:
            return version
        case {"model_path": str()}:
            return ""
        case _:
            raise InvalidResponse("version", "expected SGLang's model_info; another kind of server answers here now", server=server)


def _number(load: Any, name: str, default: float = 0.0) -> float:  # JSON
    value = load.get(name, default) if isinstance(load, dict) else default
    return float(value) if isinstance(value, int | float) else default
