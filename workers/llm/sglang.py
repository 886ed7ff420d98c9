"""SGLang's `/generate` as a `Wire` (0.5.5 and newer).

Traps this file knows:
  * An abort names one call, and takes all whose ids begin with that name with it; an empty name is every call, in older versions.
  * A call that arrived during a pause is out of reach of aborts, and a closed connection is looked for every 4 s only.
  * Whether logprobs follow the temperature hangs on the server's environment (`SGLANG_RETURN_ORIGINAL_LOGPROB`): it is measured.
  * Seeds do nothing without `--enable-deterministic-inference`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.engines.errors import InvalidResponse, Refused, Unsupported
from pipeline.engines.exchange import Exchange, together
from pipeline.engines.sglang import ABORT_PATH, model_info, wire_id
from pipeline.messages import Sampling
from workers.llm import sglang_wire as bodies
from workers.llm.backend import Caps, Echo, GenRequest
from workers.llm.experts import from_int32
from workers.llm.images import PromptImage, ReadImage
from workers.llm.vllm import choose_model
from workers.llm.wire import Answer, Body, with_spans_as_found

SCORED_IDS = [1, 2, 3, 4]
"""Tokens whose logprobs are compared at two temperatures."""
SHARP = 0.25
SAME_WITHIN = 0.01
"""Nats. Logprobs that follow the temperature differ by tenths at least, whatever the model; two computations of one by thousandths."""


@dataclass(frozen=True, slots=True)
class SglangWire:
    """One SGLang server, as it was found."""

    http: Exchange
    caps: Caps
    path: str = bodies.GENERATE

    def headers(self, request: GenRequest) -> Mapping[str, str]:
        """None: all is in the body."""
        return {}

    def write(self, request: GenRequest, name: str) -> Body:
        """The body of a call."""
        return bodies.generate_body(request, name, self.caps.max_model_len)

    def read(self, payload: object, request: GenRequest, name: str) -> Answer:
        """The checked answer."""
        answer = with_spans_as_found(bodies.parse_generate(payload, request, name, self.caps.echo), self.caps)
        if request.experts is None:
            return answer
        return replace(answer, experts=from_int32(bodies.experts_in(payload), request, answer, self.http.url))

    async def read_image(self, image: PromptImage) -> ReadImage:
        """SGLang takes ids with one placeholder an image and writes the others itself: the ids would not be ours."""
        raise Unsupported(self.http.url, "take images beside ids that stay as they are", "use vLLM, or set chat.images to false")

    async def abort(self, names: Sequence[str]) -> None:
        """End calls, each by a request of its own, all at once."""
        await together(*(self.http.command(self.caps.abort_path, {"rid": wire_id(name)}) for name in names))


async def find_sglang(http: Exchange, model: str) -> SglangWire:
    """What an SGLang server can do, by trying.

    Args:
        model: name to ask for; empty = the one the server has.
    """
    info, server, models, ready_to_pause = await together(
        model_info(http), _server_info(http), http.get("/v1/models"), _is_there(http, "/pause_generation")
    )
    name, context = choose_model(models, model, http.url)
    longest_prompt = server.get("max_req_input_len")  # below the context where the KV cache has less room
    max_model_len = min(context, longest_prompt) if type(longest_prompt) is int else context
    plain, sharp = await together(_first_token(http, 1.0), _first_token(http, SHARP))
    aborts = await http.takes(ABORT_PATH, {"rid": wire_id("probe-of-the-abort-route")})
    follows_temperature = max(abs(a - b) for a, b in zip(plain.scored, sharp.scored, strict=True)) > SAME_WITHIN
    version = server.get("version")
    caps = Caps(
        server_version=version if isinstance(version, str) else "",
        model=name,
        max_model_len=max_model_len,
        endpoint="sglang",
        logprobs_shape=plain.answer.shape,
        logprobs_mode="scaled" if follows_temperature else "raw",
        has_spans=plain.answer.spans is not None,
        abort_path=ABORT_PATH if aborts else "",
        reports_version=isinstance(info, dict) and "weight_version" in info,
        can_pause=ready_to_pause,
        rejects_while_paused=False,
        echo=plain.echo,
        aborts_while_paused=False,
    )
    return SglangWire(http, caps)


@dataclass(frozen=True, slots=True)
class _FirstToken:
    answer: Answer
    echo: Echo
    scored: list[float]
    """Logprobs of `SCORED_IDS` where it was sampled."""


async def _first_token(http: Exchange, temperature: float) -> _FirstToken:
    name = f"probe-{uuid.uuid4().hex}"
    request = GenRequest(request_id=name, prompt_ids=[0], sampling=Sampling(temperature=temperature), max_tokens=1, seed=0)
    body = bodies.generate_body(request, name, max_model_len=2)
    payload = await http.post(bodies.GENERATE, {**body, "token_ids_logprob": SCORED_IDS}, timeout_s=None)
    echo: Echo = "ids" if isinstance(payload, dict) and "prompt_token_ids" in payload else "count"
    answer = bodies.parse_generate(payload, request, name, echo)
    match payload:
        case {"meta_info": {"output_token_ids_logprobs": [[*entries]]}} if len(entries) == len(SCORED_IDS):
            return _FirstToken(answer, echo, bodies.logprobs_of(entries, SCORED_IDS))
        case other:
            raise InvalidResponse(
                "token_ids_logprob", f"expected logprobs of {len(SCORED_IDS)} tokens, got {other!r:.200}", server=http.url
            )


async def _server_info(http: Exchange) -> dict[str, Any]:
    """Version, limits and flags of the server; without secrets of ours, it says all that it was started with."""
    for path in ("/server_info", "/get_server_info"):
        info = await http.get_if_there(path)
        if isinstance(info, dict):
            return info
    return {}


async def _is_there(http: Exchange, path: str) -> bool:
    """Whether there is such a route for POST, found without using it: it answers that GET is not allowed."""
    try:
        await http.get(path, parse=False)
    except Refused as error:
        return error.status == 405
    return True
