"""Settings of the scripted server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.messages import RoutedExperts
from workers.llm.backend import LogprobsMode
from workers.llm.scripted.chat_template import TemplateName
from workers.llm.scripted.policy import PolicyOptions

WireVersion = Literal["0.31", "0.32", "0.33", "sglang-0.5.10", "sglang-0.5"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long sampling takes. Times are lognormal around their medians; 0 = at once."""

    first_token_s: float = 0.0
    per_token_s: float = 0.0
    sigma: float = 0.35
    """Spread of the natural logarithm of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the server imitates and how it behaves."""

    wire: WireVersion = "0.32"
    """vLLM: 0.31: logprobs by text, no spans, no stop_reason, abort by the development route only. 0.32: integer ids and spans. 0.33:
    refuses new calls while paused with `abort` or `wait`. SGLang: 0.5.10: no echo of the prompt but its length, no spans, does not say
    that it is paused. 0.5: the newest of these."""
    model: str = "rollstream-scripted"
    max_model_len: int = 32_768
    scale_out: bool = True
    """Off: `/inference/v1/*` answers 403, as vLLM without --enable-scale-out."""
    dev_mode: bool = True
    """Off: pause, versions and the other development routes answer 404."""
    chat_template: TemplateName | None = "chatml"
    """What `/tokenize` makes of a dialogue; None = it is refused, as by a server whose model has no template."""
    weights: str = ""
    """What it holds when it starts; empty = what its label names, until weights are loaded."""
    logprobs_mode: LogprobsMode = "processed"
    """SGLang's wire knows no `processed`: it is `scaled` there."""
    max_running: int = 256
    """Calls sampled at a time; the rest waits in line."""
    max_requests: int = 4096
    """Running and waiting calls beyond which new ones get 503."""
    block_size: int = 16
    cache_blocks: int = 65_536
    keepalive_s: float = 5.0
    """0 = each answer closes its connection."""
    api_key: str = field(default="", repr=False)
    """Guards `/v1` and `/inference` only, as in vLLM; on SGLang's wire all but health and metrics."""
    key_on_every_route: bool = False
    """As a vLLM with a guard in front (`ops/llm_server/inside_vllm/key_guard.py`)."""
    routed_experts: RoutedExperts | None = None
    """The experts that it makes up (`made_up_experts`), as servers with `--enable-return-routed-experts` send them; None = it has none."""
    images: bool = False
    """Whether it takes images, as a vision model behind vLLM's newest wire; its tokenizer then has Qwen's tokens for them
    (`scripted.images.vocabulary_with_images`)."""
    latency: Latency = field(default_factory=Latency)
    policy: PolicyOptions = field(default_factory=PolicyOptions)

    def __post_init__(self) -> None:
        if self.is_sglang and self.logprobs_mode == "processed":
            object.__setattr__(self, "logprobs_mode", "scaled")

    @property
    def is_sglang(self) -> bool:
        """Whether the wire is SGLang's."""
        return self.wire.startswith("sglang")
