"""The rival of the agent loop: an agent that speaks chat messages, and a proxy that captures tokens between it and the server.

The usual way to train an agent that knows nothing of tokens. The agent posts its messages to an OpenAI-like route; the proxy renders and
tokenizes all of them, asks the server for tokens, keeps ids and logprobs, and answers with text. Both run in this process, so their CPU is
measured as ours is. The proxy is plain: it checks nothing, keeps no prefix and re-tokenizes what was sampled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from ops.bench.turns_agent import SAMPLED, BenchDialogue
from pipeline.messages import ChatMessage
from workers.agent import ChatMLRenderer, parse_turn


class CaptureProxy:
    """`POST /v1/chat/completions`, in front of a server that takes ids.

    Args:
        socket: Unix socket of the server.
    """

    def __init__(self, socket: str, renderer: ChatMLRenderer) -> None:
        self._socket, self._renderer = socket, renderer
        self._session: aiohttp.ClientSession | None = None
        self.captured: list[tuple[list[int], list[int], list[float]]] = []
        """Prompt ids, output ids and logprobs of every call."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serves on a port of loopback; gives its address."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._socket)) as self._session:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
            finally:
                await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        assert self._session is not None, "it serves inside `serve`"
        asked = await request.json()
        messages = [ChatMessage(role=message["role"], content=message["content"]) for message in asked["messages"]]
        prompt = self._renderer.first_prompt(messages, asked["tools"]).ids
        sampling = {
            "max_tokens": asked["max_tokens"],
            "temperature": asked["temperature"],
            "seed": asked["seed"],
            "logprobs": 0,
            "extra_args": asked["extra_args"],
            "stop_token_ids": list(self._renderer.stop_token_ids),
        }
        body = {"token_ids": prompt, "sampling_params": sampling, "return_token_ids": True}
        async with self._session.post("http://localhost/inference/v1/generate", json=body) as response:
            answer = await response.json()
        (choice,) = answer["choices"]
        self.captured.append((prompt, choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]]))
        message = {"role": "assistant", "content": self._renderer.turn_text(choice["token_ids"])}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": choice["finish_reason"]}]})


async def hold_by_proxy(dialogue: BenchDialogue, session: aiohttp.ClientSession, url: str) -> None:
    """The whole dialogue, as an agent of messages holds it."""
    messages: list[dict[str, Any]] = [{"role": message.role, "content": message.content} for message in dialogue.messages]
    for turn in dialogue.turns:
        body = {
            "model": "rollstream-scripted",
            "messages": messages,
            "tools": dialogue.tools.schemas(),
            "max_tokens": 2 * SAMPLED,
            "temperature": 1.0,
            "seed": 1,
            "extra_args": {"script": turn},
        }
        async with session.post(url, json=body) as response:
            said = (await response.json())["choices"][0]["message"]
        messages.append(said)
        for call in parse_turn(said["content"], tools=dialogue.tools.parameters()).calls:
            result = await dialogue.tools[call.name](call.arguments, timeout_s=1.0)
            messages.append({"role": "tool", "content": result.text})
