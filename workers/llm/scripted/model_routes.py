"""What servers of both kinds say of their model and its tokenizer, under the same routes."""

from __future__ import annotations

from aiohttp import web

from workers.llm.scripted.chat_template import render_chat
from workers.llm.scripted.http import BadRequestError, answer_json, read_object
from workers.llm.scripted.routes import Host, Routes


class ModelRoutes:
    """The routes of one server."""

    def __init__(self, host: Host, wire: Routes) -> None:
        self._host = host
        self._wire = wire

    def add_to(self, app: web.Application) -> None:
        """All."""
        app.router.add_route("GET", "/v1/models", self._models)
        app.router.add_route("POST", "/tokenize", self._tokenize)
        app.router.add_route("POST", "/detokenize", self._detokenize)

    async def _models(self, _: web.Request) -> web.StreamResponse:
        entry = {
            "id": self._host.options.model,
            "object": "model",
            "owned_by": "rollstream",
            "max_model_len": self._host.options.max_model_len,
        }
        return answer_json({"object": "list", "data": [entry]})

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        if isinstance(body.get("messages"), list):
            if self._host.options.chat_template is None:
                raise BadRequestError("the model has no chat template", param="messages")
            try:
                text = render_chat(
                    body["messages"],
                    body.get("tools") or [],
                    template=self._host.options.chat_template,
                    add_generation_prompt=body.get("add_generation_prompt", True),
                    kwargs=body.get("chat_template_kwargs"),
                )
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise BadRequestError(f"the template cannot render this: {error!r}", param="messages") from error
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            raise BadRequestError("expected a prompt or messages", param="prompt")
        tokens = self._host.tokenizer.encode_template(text)
        return answer_json({"count": len(tokens), "max_model_len": self._host.options.max_model_len, "tokens": tokens, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        tokens = (await read_object(request)).get("tokens")
        if not isinstance(tokens, list) or not all(type(id_) is int and 0 <= id_ < 2**32 for id_ in tokens):
            raise BadRequestError("tokens must be a list of token ids", param="tokens")
        return answer_json(self._wire.detokenized(self._host.tokenizer.decode(tokens)))
