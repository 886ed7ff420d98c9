"""An inference server as a `Backend`, of whatever kind it is."""

from __future__ import annotations

from typing import Literal

from pipeline.engines.connect import engine_kind
from pipeline.engines.exchange import Exchange
from pipeline.engines.vllm import Endpoint
from workers.llm.http_backend import FASTEST_RESTART_S, HttpBackend
from workers.llm.sglang import find_sglang
from workers.llm.vllm import find_vllm
from workers.llm.wire import Wire


def connect_backend(
    url: str,
    *,
    model: str = "",
    api_key: str = "",
    endpoint: Endpoint | Literal["auto"] = "auto",
    fastest_restart_s: float = FASTEST_RESTART_S,
) -> HttpBackend:
    """A client of one server. Enter it with `async with`; nobody is asked before its first use.

    Args:
        url: `http://host:port` or `unix:/path/to.sock`.
        model: name to ask for; empty = the first the server lists.
        api_key: sent as a bearer token when not empty.
        endpoint: of vLLM; `auto` takes `/inference/v1/generate` where the server has it.
        fastest_restart_s: how soon after it was asked the server can have been started again.
    """

    async def ask(http: Exchange) -> Wire:
        if await engine_kind(http) == "sglang":
            return await find_sglang(http, model)
        return await find_vllm(http, model, endpoint)

    return HttpBackend(url, api_key, ask, fastest_restart_s=fastest_restart_s)
