"""The scripted engine as a `Model` without HTTP: for tests of the agent, and for benchmarks that leave the wire out.

What the model says can be given line by line; after the last line the policy speaks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.blobs import ExpertRows
from pipeline.engines.errors import ModelError, Overlong, Retryable, Unsupported
from workers.llm.backend import Caps, GenRequest, GenResult, Span
from workers.llm.images import PromptImage, ReadImage
from workers.llm.scripted.call import Call
from workers.llm.scripted.engine import Engine
from workers.llm.scripted.experts import made_up_experts
from workers.llm.scripted.images import check_features, rendered
from workers.llm.scripted.line import EngineBusyError
from workers.llm.scripted.options import ServerOptions
from workers.llm.scripted.policy import Policy
from workers.llm.scripted.problems import Problem, ProblemBank
from workers.llm.tokenizer import Tokenizer, load
from workers.llm.vllm_images import features, parse_render, render_body

Line = str | Sequence[int] | ModelError
"""A turn as text in which markup means markup (its end token is added), a turn as ids, or what goes wrong instead."""


class InProcessBackend:
    """An engine of one's own.

    Args:
        lines: what successive calls say; a call takes the next one when it begins.
        token_s: seconds a token, 0 = at once.
    """

    def __init__(
        self,
        lines: Iterable[Line] = (),
        *,
        options: ServerOptions | None = None,
        tokenizer: Tokenizer | None = None,
        problems: Iterable[Problem] = (),
        token_s: float = 0.0,
    ) -> None:
        self.options = options or ServerOptions()
        self.tokenizer = tokenizer or load()
        self.policy = Policy(self.tokenizer, ProblemBank(problems), self.options.policy)
        self.engine = Engine(self.options, self.tokenizer, self.policy)
        self.requests: list[GenRequest] = []
        """Every request, in order."""
        self._lines = deque(lines)
        self._token_s = token_s

    async def probe(self) -> Caps:
        """What the newest wire can do."""
        return Caps(
            server_version=self.options.wire,
            model=self.options.model,
            max_model_len=self.options.max_model_len,
            endpoint="generate",
            logprobs_shape="token_id",
            logprobs_mode=self.options.logprobs_mode,
            has_spans=True,
            abort_path="in process",
            reports_version=True,
            can_pause=True,
            rejects_while_paused=False,
        )

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """The next line, or the policy's turn."""
        self.requests.append(request)
        if self.options.images or request.images:
            shown = {"features": features(request.images)} if request.images else {}
            check_features({"token_ids": [*request.prompt_ids], **shown}, self.options, self.tokenizer)
        room = self.options.max_model_len - len(request.prompt_ids)
        if room < 1:
            raise Overlong(len(request.prompt_ids), self.options.max_model_len)
        script: tuple[int, ...] | None = None
        if self._lines:
            line = self._lines.popleft()
            if isinstance(line, ModelError):
                raise line
            script = (*self.tokenizer.encode_template(line), self.policy.end_id) if isinstance(line, str) else tuple(line)
        budget = min(request.max_tokens, room)
        call = Call(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            sampling=replace(request.sampling, max_tokens=budget),
            seed=request.seed,
            stop_token_ids=frozenset(request.stop_token_ids),
            stop=request.stop,
            cache_salt=request.cache_salt,
            script=script,
            delay_s=self._token_s or None,
        )
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                output = await self.engine.run(call)
        except TimeoutError:
            raise Retryable("timeout", "in process", f"no answer within {timeout_s:g} s") from None
        except EngineBusyError:
            raise Retryable("busy", "in process", "too many calls") from None
        return GenResult(
            output_ids=output.token_ids,
            logprobs=output.logprobs,
            finish=output.finish,
            stop_reason=output.stop_reason,
            spans=tuple(Span(version=version, start=start, end=end) for version, start, end in output.spans),
            version_source="spans",
            version_after="",
            cached_tokens=output.cached_tokens,
            logprobs_mode=self.options.logprobs_mode,
            server="in process",
            server_request_id=request.request_id,
            seconds=time.monotonic() - started,
            experts=self._experts(request, output.token_ids),
        )

    def _experts(self, request: GenRequest, output_ids: Sequence[int]) -> ExpertRows | None:
        if request.experts is None or not output_ids:
            return None
        if self.options.routed_experts != request.experts:
            remedy = f"it has {self.options.routed_experts}, asked for {request.experts}"
            raise Unsupported("in process", "say which experts its tokens were routed to", remedy)
        return made_up_experts([*request.prompt_ids, *output_ids], request.experts, request.experts_from)

    async def read_image(self, image: PromptImage) -> ReadImage:
        """What the scripted server makes of it."""
        if not self.options.images:
            raise Unsupported("in process", "be shown images", "set images in its options")
        return parse_render(rendered(render_body(image, self.options.model), self.options, self.tokenizer))

    async def abort(self, request_id: str) -> None:
        """End a call."""
        self.engine.abort([request_id])

    async def close(self) -> None:
        """Nothing to give back."""
