"""vLLM as a `Wire`: `/inference/v1/generate` where the server has it, else `/v1/completions`.

Traps this file knows:
  * Abort goes by the server's own id (ours with a prefix); a bare one answers 200 and does nothing. An empty list of ids would abort every
    request of the server.
  * Versions tell little, since flags switch routes off: each is tried.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.engines.errors import InvalidResponse, Refused, Unsupported
from pipeline.engines.exchange import ABSENT, Exchange, together
from pipeline.engines.vllm import ABORT_PATHS, Endpoint, abort_ids
from pipeline.messages import Sampling
from workers.llm import vllm_images
from workers.llm import vllm_wire as bodies
from workers.llm.backend import Caps, GenRequest
from workers.llm.experts import from_npy
from workers.llm.images import PromptImage, ReadImage
from workers.llm.wire import Answer, Body, with_spans_as_found

IMAGE_TIMEOUT_S = 60.0
"""For a processor that scales an image and sends it back as numbers."""


@dataclass(frozen=True, slots=True)
class VllmWire:
    """One vLLM server, as it was found."""

    http: Exchange
    caps: Caps
    endpoint: Endpoint

    @property
    def path(self) -> str:
        """The route of a call."""
        return bodies.GENERATE if self.endpoint == "generate" else bodies.COMPLETIONS

    def headers(self, request: GenRequest) -> Mapping[str, str]:
        """The session, by which a router keeps a job's calls together."""
        return {"X-Session-ID": request.session_id} if request.session_id else {}

    def write(self, request: GenRequest, name: str) -> Body:
        """The body of a call."""
        build = bodies.generate_body if self.endpoint == "generate" else bodies.completions_body
        return build(request, name, self.caps.model)

    def read(self, payload: object, request: GenRequest, name: str) -> Answer:
        """The checked answer."""
        parse = bodies.parse_generate if self.endpoint == "generate" else bodies.parse_completions
        answer = with_spans_as_found(parse(payload, request, name), self.caps)
        if request.experts is None:
            return answer
        return replace(answer, experts=from_npy(bodies.experts_in(payload), request, answer, self.http.url))

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the server's processor makes of an image."""
        if self.endpoint != "generate":
            raise Unsupported(self.http.url, "take images beside ids", "start it with --enable-scale-out")
        body = vllm_images.render_body(image, self.caps.model)
        return vllm_images.parse_render(await self.http.post(vllm_images.RENDER, body, timeout_s=IMAGE_TIMEOUT_S))

    async def abort(self, names: Sequence[str]) -> None:
        """End calls, all by one request."""
        ids = [id_ for name in names for id_ in abort_ids(self.endpoint, name)]
        if ids:
            await self.http.command(self.caps.abort_path, {"request_ids": ids})


async def find_vllm(http: Exchange, model: str, endpoint: Endpoint | Literal["auto"] = "auto") -> VllmWire:
    """What a vLLM server can do, by trying.

    Args:
        model: name to ask for; empty = the first the server lists.
        endpoint: `auto` takes `/inference/v1/generate` where the server has it.
    """
    version, models, weights, paused = await together(
        http.get_if_there("/version"), http.get("/v1/models"), http.get_if_there("/weight_info"), http.get_if_there("/is_paused")
    )
    server_version = version["version"] if isinstance(version, dict) and isinstance(version.get("version"), str) else ""
    name, max_model_len = choose_model(models, model, http.url)
    found, answer = await _first_token(http, name, endpoint)
    abort_path = ""
    for path in ABORT_PATHS:
        if await http.takes(path, {"request_ids": abort_ids(found, "probe-of-the-abort-route")}):
            abort_path = path
            break
    caps = Caps(
        server_version=server_version,
        model=name,
        max_model_len=max_model_len,
        endpoint=found,
        logprobs_shape=answer.shape,
        # Only one token was allowed: its processed logprob is 0, its raw one is what the model thinks of it.
        logprobs_mode="processed" if answer.logprobs[0] > -1e-6 else "raw",
        has_spans=answer.spans is not None,
        abort_path=abort_path,
        reports_version=weights is not None,
        can_pause=paused is not None,
        rejects_while_paused=_version_tuple(server_version) >= (0, 33),
    )
    return VllmWire(http, caps, found)


def choose_model(models: object, wanted: str, server: str) -> tuple[str, int]:
    """Name and context of a model in an OpenAI-like `/v1/models`; `wanted` empty takes the first."""
    match models:
        case {"data": [*entries]}:
            for entry in entries:
                match entry:
                    case {"id": str(name), "max_model_len": int(length)} if name == (wanted or name):
                        return name, length
    raise InvalidResponse("models", f"expected a model ({wanted or 'any'}) with its max_model_len, got {models!r:.200}", server=server)


async def _first_token(http: Exchange, model: str, endpoint: Endpoint | Literal["auto"]) -> tuple[Endpoint, Answer]:
    name = f"probe-{uuid.uuid4().hex}"
    request = GenRequest(request_id=name, prompt_ids=[0], sampling=Sampling(), max_tokens=1, seed=0)
    if endpoint != "completions":
        body = bodies.generate_body(request, name, model)
        body["sampling_params"]["allowed_token_ids"] = [1]
        try:
            return "generate", bodies.parse_generate(await http.post(bodies.GENERATE, body, timeout_s=None), request, name)
        except Refused as error:
            if error.status not in ABSENT or endpoint == "generate":
                raise
    body = {**bodies.completions_body(request, name, model), "allowed_token_ids": [1]}
    return "completions", bodies.parse_completions(await http.post(bodies.COMPLETIONS, body, timeout_s=None), request, name)


def _version_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
