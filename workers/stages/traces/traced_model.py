"""A model whose calls are spans. One call is one span, with all its tries, and the time that it waited for a place or a server."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from workers.llm.backend import Caps, GenRequest, GenResult
from workers.llm.images import PromptImage, ReadImage
from workers.llm.server_check import ServerCheck
from workers.stages.concurrency.limited_model import PoolModel
from workers.stages.traces.attempt import Attempt, Attributes


class TracedModel:
    """Wraps the way of a job to its model.

    Args:
        model: asked for by name; empty = the one that the server has.
    """

    def __init__(self, way: PoolModel, attempt: Attempt, model: str) -> None:
        self._way = way
        self._attempt = attempt
        self._model = model
        self._provider: dict[str, str] = {}

    def check_servers(self, check: ServerCheck) -> None:
        """Shows each server to `check` before any call of this job to it."""
        self._way.check_servers(check)

    async def probe(self) -> Caps:
        """What the server can do; no span."""
        caps = await self._way.probe()
        self._model = self._model or caps.model
        self._provider = {"gen_ai.provider.name": "sglang" if caps.endpoint == "sglang" else "vllm"}
        return caps

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the server makes of an image; no span."""
        return await self._way.read_image(image)

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """One call, and its span."""
        began_s = time.monotonic()
        told: Attributes = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.sampling.temperature,
            "gen_ai.usage.input_tokens": len(request.prompt_ids),
            **self._provider,
        }
        name = f"text_completion {self._model}".rstrip()
        try:
            result = await self._way.generate(request, timeout_s=timeout_s)
        except BaseException as error:
            self._attempt.call(name, began_s, told, error=type(error).__name__, is_client=True)
            raise
        waited_ms = max(0, round(1000 * (time.monotonic() - began_s - result.seconds)))
        self._attempt.call(name, began_s, {**told, **_answer(result), "rollstream.wait_ms": waited_ms}, is_client=True)
        return result

    async def abort(self, request_id: str) -> None:
        """Ends a call at its server."""
        await self._way.abort(request_id)


def _answer(result: GenResult) -> Attributes:
    cached = {} if result.cached_tokens is None else {"gen_ai.usage.cache_read.input_tokens": result.cached_tokens}
    version = {"rollstream.policy_version": result.spans[-1].version} if result.spans else {}
    return {
        "gen_ai.usage.output_tokens": len(result.output_ids),
        "gen_ai.response.finish_reasons": (result.finish,),
        **cached,
        **version,
        **server_place(result.server),
    }


def server_place(address: str) -> Attributes:
    """Host and port of a server, or the path of its socket: an address may hold more, which is nobody's."""
    if address.startswith("unix:"):
        return {"server.address": address.removeprefix("unix:")}
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return {}
    return {**({"server.address": host} if host else {}), **({"server.port": port} if port else {})}
