"""What people and other programs ask for, checked before anything is sent: pydantic models that become the records of `messages.py`.

A request that can never succeed is refused here with one `InvalidRequest`: which field, what was expected, what came. Nothing is converted
in silence (`"8"` is no number, `true` is no 1), unknown fields are errors (a misspelt limit would otherwise be the default), and every
number has stated bounds. The bounds are far above any sane use; they stop mistakes of unit and typing (milliseconds for seconds).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from pipeline.chat_request import ChatRequest
from pipeline.codec import encode
from pipeline.errors import InvalidRequest
from pipeline.exact_sampling import inexact_sampling
from pipeline.keys import PROMPT_ID, RUN_ID
from pipeline.messages import JobTemplate, Limits, Recovery, RewardSource, RoutedExperts, Sampling
from pipeline.prompts import PlainMap, PromptMap
from pipeline.request_errors import shown
from pipeline.request_model import Request
from pipeline.trace_context import checked_traceparent

DAY_S = 86_400.0
MAX_TOKENS = 16_777_216
"""Above any model's context."""
MAX_OPTION_BYTES = 1024 * 1024
"""A template is read by each worker for each new feed: files and long texts belong into the prompt."""
TASK = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
CAPABILITY = r"^[a-z][a-z0-9_+-]{0,63}$"
VERSION = r"^[A-Za-z0-9_.:+-]{0,64}$"

_sampling, _limits, _template = Sampling(), Limits(), JobTemplate(task="x")


class SamplingRequest(Request):
    """How the model samples; see `messages.Sampling`."""

    temperature: float = Field(default=_sampling.temperature, ge=0, le=10)
    """0 = greedy."""
    top_p: float = Field(default=_sampling.top_p, gt=0, le=1)
    top_k: int = Field(default=_sampling.top_k, ge=0, le=1_000_000)
    """0 = all."""
    min_p: float = Field(default=_sampling.min_p, ge=0, le=1)
    presence_penalty: float = Field(default=_sampling.presence_penalty, ge=-2, le=2)
    frequency_penalty: float = Field(default=_sampling.frequency_penalty, ge=-2, le=2)
    repetition_penalty: float = Field(default=_sampling.repetition_penalty, gt=0, le=10)
    max_tokens: int = Field(default=_sampling.max_tokens, ge=1, le=MAX_TOKENS)
    """Most tokens of one model call."""

    def record(self) -> Sampling:
        """The message."""
        return Sampling(**self.model_dump())


class LimitsRequest(Request):
    """What one job may use; see `messages.Limits`."""

    max_turns: int = Field(default=_limits.max_turns, ge=1, le=10_000)
    max_sampled_tokens: int = Field(default=_limits.max_sampled_tokens, ge=1, le=MAX_TOKENS)
    max_context_tokens: int = Field(default=_limits.max_context_tokens, ge=1, le=MAX_TOKENS)
    max_observation_tokens: int = Field(default=_limits.max_observation_tokens, ge=1, le=MAX_TOKENS)
    tool_timeout_s: float = Field(default=_limits.tool_timeout_s, gt=0, le=DAY_S)
    init_active_s: float = Field(default=_limits.init_active_s, gt=0, le=7 * DAY_S)
    run_active_s: float = Field(default=_limits.run_active_s, gt=0, le=7 * DAY_S)
    eval_active_s: float = Field(default=_limits.eval_active_s, gt=0, le=7 * DAY_S)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_observation_tokens > self.max_context_tokens:
            raise ValueError(
                f"expected max_observation_tokens ({self.max_observation_tokens}) to be at most max_context_tokens "
                f"({self.max_context_tokens}): one answer of a tool would not fit into the context"
            )
        return self

    def record(self) -> Limits:
        """The message."""
        return Limits(**self.model_dump())


class RoutedExpertsRequest(Request):
    """A model with experts, as its configuration says it; see `messages.RoutedExperts`."""

    layers: int = Field(ge=1, le=10_000)
    """Layers with experts, without the dense ones."""
    top_k: int = Field(ge=1, le=1024)
    """Experts a token and layer (`num_experts_per_tok`)."""
    experts: int = Field(ge=1, le=65_536)
    """Experts a layer that a token can be routed to (`num_experts`)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"expected top_k ({self.top_k}) to be at most experts ({self.experts})")
        return self

    def record(self) -> RoutedExperts:
        """The message."""
        return RoutedExperts(**self.model_dump())


class TemplateRequest(Request):
    """What the jobs of one feed have in common."""

    task: str = Field(pattern=TASK)
    """Name of the handler, such as `math`."""
    model: str = Field(default=_template.model, max_length=256)
    sampling: SamplingRequest = Field(default_factory=SamplingRequest)
    limits: LimitsRequest = Field(default_factory=LimitsRequest)
    chat: ChatRequest = Field(default_factory=ChatRequest)
    """Which template and tokenizer the model has."""
    options: PlainMap = Field(default_factory=dict)
    """The handler's own settings."""
    run_seed: int = Field(default=_template.run_seed, ge=0, le=2**63 - 1)
    capability: str = Field(default=_template.capability, pattern=CAPABILITY)
    """Class of node that INIT needs: `none`, `isolated`, `isolated+network`."""
    recovery: Annotated[Recovery, Field(strict=False)] = _template.recovery
    priority: int = Field(default=_template.priority, ge=-100, le=100)
    """Higher goes first within the run."""
    wall_s: float = Field(default=_template.wall_s, ge=0.1, le=30 * DAY_S)
    """From accepted to terminal."""
    max_failed: int = Field(default=_template.max_failed, ge=0, le=100)
    max_lost: int = Field(default=_template.max_lost, ge=0, le=1000)
    expected_bytes: int = Field(default=_template.expected_bytes, ge=0, le=1024**3)
    """Reserved in Redis for the bodies of one job."""
    reward: Annotated[RewardSource, Field(strict=False)] = _template.reward
    """`task`: EVAL grades. `outside`: EVAL does not, and the job awaits `run.report_reward`."""
    reward_deadline_s: float = Field(default=_template.reward_deadline_s, ge=0.1, le=30 * DAY_S)
    """How long it awaits that; then it ends as an `infra_failure`, without a reward."""
    routed_experts: RoutedExpertsRequest | None = None
    """Keeps which experts each token was routed to, for router replay: what the model has, since its servers may not say. They run with
    `--enable-return-routed-experts`, and workers and trainer share a folder (`[blobs] dir`)."""

    def template(self) -> JobTemplate:
        """The message.

        Raises:
            InvalidRequest: `options` are above `MAX_OPTION_BYTES`.
        """
        template = JobTemplate(
            task=self.task,
            model=self.model,
            sampling=self.sampling.record(),
            limits=self.limits.record(),
            chat=self.chat.record(),
            options=dict(self.options),
            run_seed=self.run_seed,
            capability=self.capability,
            recovery=self.recovery,
            priority=self.priority,
            wall_s=self.wall_s,
            max_failed=self.max_failed,
            max_lost=self.max_lost,
            expected_bytes=self.expected_bytes,
            reward=self.reward,
            reward_deadline_s=self.reward_deadline_s,
            routed_experts=None if self.routed_experts is None else self.routed_experts.record(),
        )
        n_bytes = len(encode(template))
        if n_bytes > MAX_OPTION_BYTES:
            raise InvalidRequest(
                f"expected at most {MAX_OPTION_BYTES:,} bytes, got {n_bytes:,}: put what is long into the prompt", field="options"
            )
        return template


def check_exact(sampling: SamplingRequest, way_out: str) -> None:
    """Refuses here what each worker would refuse, job by job."""
    if why := inexact_sampling(sampling.record()):
        raise ValueError(f"sampling: expected logprobs of the distribution sampled from, but {why}: {way_out}")


def new_id() -> str:
    """An id that nobody else has."""
    return "x" + secrets.token_hex(8)


class JobRequest(TemplateRequest):
    """One rollout."""

    prompt: PromptMap
    """The task instance: what the handler needs (question, gold answer, image, ...)."""
    id: str = Field(default_factory=new_id, pattern="^" + PROMPT_ID.pattern.replace(r"\Z", "$"))
    """Names the job within its run. The same id submitted again is the same job, so a request whose answer was lost can be sent again."""
    version: str = Field(default="", pattern=VERSION)
    """Policy version that is expected to sample it; empty = any."""
    exact_logprobs: bool = _template.exact_logprobs
    """Whether its logprobs must be those of the distribution sampled from. Greedy or truncated sampling (`top_p`, ...) needs False, and
    then a trainer's ratio would be wrong."""
    traceparent: Annotated[str, AfterValidator(checked_traceparent)] = ""
    """Span below which its spans hang, as W3C Trace Context writes it; empty = the current one of whoever submits it, if there is one."""

    @model_validator(mode="after")
    def _is_exact(self) -> Self:
        if self.exact_logprobs:
            check_exact(self.sampling, "set exact_logprobs=False where nothing is trained on it")
        return self

    def template(self) -> JobTemplate:
        """The message."""
        return replace(super().template(), exact_logprobs=self.exact_logprobs)


def template_id(body: bytes) -> str:
    """Name of an encoded template within its run: equal templates have equal names."""
    return hashlib.blake2b(body, digest_size=8).hexdigest()


def run_id(run: object) -> str:
    """The id of a run, checked.

    Raises:
        InvalidRequest: it cannot be part of a key.
    """
    if not isinstance(run, str) or not RUN_ID.match(run):
        raise InvalidRequest(f"expected 1 to 48 of a-z, 0-9, - and _, beginning with a letter or digit, got {shown(run)}", field="run")
    return run


def bounded_seconds(value: object, field: str) -> float | None:
    """A timeout in seconds; None = no limit.

    Raises:
        InvalidRequest: negative, NaN or absurd.
    """
    return None if value is None else bounded_number(value, field, low=0, high=30 * DAY_S, unit="seconds, or None for no limit")


def bounded_number(value: object, field: str, *, low: float, high: float, unit: str = "a number") -> float:
    """A number within bounds.

    Raises:
        InvalidRequest: something else, NaN too.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequest(f"expected {unit}, from {low:,g} to {high:,.15g}, got {shown(value)}", field=field)
    return float(value)


def bounded_int(value: object, field: str, *, low: int, high: int) -> int:
    """A whole number within bounds.

    Raises:
        InvalidRequest: something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"expected a whole number from {low:,} to {high:,}, got {shown(value)}", field=field)
    return value


__all__ = [
    "ChatRequest",
    "JobRequest",
    "LimitsRequest",
    "Request",
    "RoutedExpertsRequest",
    "SamplingRequest",
    "TemplateRequest",
    "bounded_int",
    "bounded_number",
    "bounded_seconds",
    "new_id",
    "run_id",
    "template_id",
]
