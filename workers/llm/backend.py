"""What the agent asks of an inference server, whatever speaks on the other side.

Ids in, ids and logprobs out. An answer that a `Backend` returns has passed `workers/llm/validate.py`: the server echoed the prompt,
every token has a finite logprob, and the version spans cover the output. Nothing behind this protocol knows Redis; the pool that
chooses a server wraps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.blobs import ExpertRows
from pipeline.engines.control import EngineControl, EngineKind
from pipeline.messages import RoutedExperts, Sampling
from workers.llm.images import PlacedImage

Finish = Literal["stop", "length", "abort"]
"""`stop`: end token or stop string; `length`: budget or context used up; `abort`: ended from outside, what came so far is given."""
LogprobsShape = Literal["token_id", "token_text", "arrays", "triples"]
"""Integer `token_id` entries; `"token": "token_id:N"` entries; the parallel arrays of /v1/completions; SGLang's `[logprob, id, text]`."""
LogprobsMode = Literal["raw", "scaled", "processed"]
"""Of which distribution. `processed`: the one sampled from. `scaled`: of the whole vocabulary after temperature and penalties, before
truncation. `raw`: the model's, before all of that."""
Echo = Literal["ids", "count"]
VersionSource = Literal["spans", "stamped", "assumed"]
"""How the spans of an answer are known: from the server; the label before the call (the older one counts); the caller's belief."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenRequest:
    """One model call."""

    request_id: str
    """Unique a call and attempt; the id by which it is aborted."""
    prompt_ids: Sequence[int]
    sampling: Sampling
    max_tokens: int
    """Budget of this call, at least 1; `sampling.max_tokens` is only the bound a turn began with."""
    seed: int
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    cache_salt: str | None = None
    """Prefix caches are shared only among equal salts: the policy version goes in here."""
    believed_version: str = "unknown"
    """Label of the weights as the caller knows it: what tokens bear whose server says nothing of its weights."""
    priority: int = 0
    session_id: str | None = None
    extra_args: Mapping[str, object] | None = None
    """Passed to the engine as they are (scripts of the scripted server, arguments of logits processors)."""
    experts: RoutedExperts | None = None
    """What the model has, when the answer is to say which experts its tokens were routed to."""
    experts_from: int = 0
    """First token whose experts are wanted; at most the last of the prompt."""
    images: Sequence[PlacedImage] = ()
    """Those of the prompt, in order; each stands on its placeholders in `prompt_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Output tokens `start` to `end` (exclusive), sampled by one policy version."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenResult:
    """One believed answer."""

    output_ids: list[int]
    """As sampled, the stop token included."""
    logprobs: list[float]
    """One a token, nats, finite."""
    finish: Finish
    stop_reason: int | str | None
    """Stop token or stop string other than the model's own end token."""
    spans: tuple[Span, ...]
    """In order, without gaps, covering the output; empty only with it."""
    version_source: VersionSource
    version_after: str
    """Label the server reported after the call; empty when it was not asked."""
    cached_tokens: int | None
    """Prompt tokens found in the prefix cache; None = the server does not say."""
    logprobs_mode: LogprobsMode
    """Of the server that answered."""
    server: str
    server_request_id: str
    seconds: float
    experts: ExpertRows | None = None
    """Those of tokens `experts_from` of the request to the last but one of prompt and output together; None = nobody asked, nothing was
    sampled, or the call was aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What one server can do, found by asking it."""

    server_version: str
    model: str
    max_model_len: int
    endpoint: Literal["generate", "completions", "sglang"]
    """vLLM's `/inference/v1/generate` or `/v1/completions`, or SGLang's `/generate`."""
    logprobs_shape: LogprobsShape
    logprobs_mode: LogprobsMode
    has_spans: bool
    abort_path: str
    """Empty: only closing the connection aborts."""
    reports_version: bool
    can_pause: bool
    rejects_while_paused: bool
    """New calls get 503 while it is paused with `abort` or `wait`, instead of waiting."""
    aborts_while_paused: bool = True
    """Whether a call that arrived during a pause can be aborted before the pause ends."""
    echo: Echo = "ids"
    """How an answer shows that the prompt was read as it was sent: by its ids, or only by how many they were."""

    @property
    def kind(self) -> EngineKind:
        """Which server it is."""
        return "sglang" if self.endpoint == "sglang" else "vllm"


class Model(Protocol):
    """What an agent calls: one server, or a pool that looks like one."""

    async def probe(self) -> Caps:
        """Ask the server what it can do; remembered."""
        ...

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """One call. When the awaiting task is cancelled the request is aborted at the server before the connection closes."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a call, also one of another process; its own `generate` then returns what came, with finish `abort`."""
        ...


class Backend(Model, Protocol):
    """An inference server. All calls raise `ModelError` and nothing else, `CancelledError` aside."""

    @property
    def control(self) -> EngineControl:
        """Pause, label, flush and look."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...
