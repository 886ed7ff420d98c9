"""What people and other programs ask for, checked before anything is sent: pydantic models that become the records of `messages.py`.

A request that can never succeed is refused here with one `InvalidRequest`: which field, what was expected, what came. Nothing is converted
in silence (`"8"` is no number, `true` is no 1), unknown fields are errors (a misspelt limit would otherwise be the default), and every
number has stated bounds. The bounds are far above any sane use; they stop mistakes of unit and typing (milliseconds for seconds).
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.codec import encode
from pipeline.errors import InvalidRequest
from pipeline.exact_sampling import inexact_sampling
from pipeline.keys import PROMPT_ID, RUN_ID
from pipeline.messages import JobTemplate, Json, Limits, Prompt, Recovery, RewardSource, Sampling, StopReason
from pipeline.request_errors import invalid_request, shown
from pipeline.supervisor.informative import check_policy
from pipeline.supervisor.loss_policy import DEFAULT_LOSS, Loss
from pipeline.supervisor.step_spec import CancelRule, OnStale, StepSpec, Surplus

DAY_S = 86_400.0
MAX_TOKENS = 16_777_216
"""Above any model's context."""
MAX_AHEAD = 64
MAX_DEPTH = 32
"""Deepest nesting of a prompt or of options; msgpack readers bound it too."""
TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting, but some field goes far deeper"
MAX_OPTION_BYTES = 1024 * 1024
"""A template is read by each worker for each new feed: files and long texts belong into the prompt."""
MAX_INT, MIN_INT = 2**64 - 1, -(2**63)
"""What msgpack can carry."""
TASK = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
CAPABILITY = r"^[a-z][a-z0-9_+-]{0,63}$"
VERSION = r"^[A-Za-z0-9_.:+-]{0,64}$"

_sampling, _limits, _template = Sampling(), Limits(), JobTemplate(task="x")


def plain_map(value: Mapping[str, object]) -> dict[str, object]:
    """The same map with nothing but plain values in it; numbers of numpy become Python's, tuples lists.

    Raises:
        ValueError: a value that cannot travel, with its place.
    """
    return {_text(key, ""): _plain(item, key, 1) for key, item in value.items()}


def _plain(value: object, place: str, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError(f"expected at most {MAX_DEPTH} levels of nesting, but {place[:80]!r} goes deeper")
    match value:
        case None | bool() | float():
            return value
        case str():
            return _text(value, place)
        case int():
            if not MIN_INT <= value <= MAX_INT:
                raise ValueError(f"expected integers of 64 bits, got {value.bit_length()} bits at {place!r}: send it as text")
            return value
        case np.generic():
            return _plain(value.item(), place, depth)
        case Mapping():
            return {_text(key, place): _plain(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
        case np.ndarray():
            raise ValueError(f"expected plain values, got an array at {place!r}: use .tolist()")
        case _:
            raise ValueError(f"expected plain values (text, numbers, booleans, None, lists, maps), got {type(value).__name__} at {place!r}")


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text as the names of a map, got {shown(value)} at {place!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"expected valid Unicode, got half a surrogate pair at {place!r}: UTF-8 cannot hold it") from error
    return value


def _not_empty(data: dict[str, object]) -> dict[str, object]:
    if all(value is None or (isinstance(value, str) and not value.strip()) for value in data.values()):
        raise ValueError(f"expected at least one value that is not empty, got {data!r}: there is nothing to work on")
    return data


LossPolicy = dict[Annotated[StopReason, Field(strict=False)], Annotated[Loss, Field(strict=False)]]
PlainMap = Annotated[Mapping[str, object], AfterValidator(plain_map)]
PromptMap = Annotated[Mapping[str, object], AfterValidator(plain_map), AfterValidator(_not_empty)]


class Request(BaseModel):
    """Base of all requests: strict, frozen, no unknown fields, no NaN where a number is asked for.

    Built when first used: a trainer imports all of them and may use one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    def __init__(self, **data: object) -> None:
        """Builds and checks a request.

        Raises:
            InvalidRequest: a field does not fit.
        """
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise invalid_request(error, type(self)) from None
        except RecursionError:
            raise InvalidRequest(TOO_DEEP) from None

    # pydantic calls an overridden __init__ also for nested models, where our error would lose the path to the field; this flag of
    # its own says that ours adds nothing to the check.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def parse(cls, data: object) -> Self:
        """A request from a map, such as a decoded JSON body.

        Raises:
            InvalidRequest: as the constructor.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise invalid_request(error, cls) from None
        except RecursionError:
            raise InvalidRequest(TOO_DEEP) from None


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


class TemplateRequest(Request):
    """What the jobs of one feed have in common."""

    task: str = Field(pattern=TASK)
    """Name of the handler, such as `math`."""
    model: str = Field(default=_template.model, max_length=256)
    sampling: SamplingRequest = Field(default_factory=SamplingRequest)
    limits: LimitsRequest = Field(default_factory=LimitsRequest)
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
        )
        n_bytes = len(encode(template))
        if n_bytes > MAX_OPTION_BYTES:
            raise InvalidRequest(
                f"expected at most {MAX_OPTION_BYTES:,} bytes, got {n_bytes:,}: put what is long into the prompt", field="options"
            )
        return template


def _check_exact(sampling: SamplingRequest, way_out: str) -> None:
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

    @model_validator(mode="after")
    def _is_exact(self) -> Self:
        if self.exact_logprobs:
            _check_exact(self.sampling, "set exact_logprobs=False where nothing is trained on it")
        return self

    def template(self) -> JobTemplate:
        """The message."""
        return replace(super().template(), exact_logprobs=self.exact_logprobs)


class StepRequest(TemplateRequest):
    """What one optimizer step asks for, and how its rollouts are made."""

    groups: int = Field(ge=1, le=100_000)
    """Informative groups to train on."""
    n: int = Field(ge=1, le=1024)
    """Members of a group."""
    over: float = Field(default=1.5, ge=1, le=100)
    """Over-sampling: groups in flight beyond those that the running filter rate says are needed, as a factor."""
    informative_on: str = Field(default="score", min_length=1, max_length=64)
    """Named part of the reward that the filter looks at; `score` is the reward itself."""
    eps: float = Field(default=1e-6, ge=0, le=1e9)
    """A group is informative when its members differ by more than this."""
    policy: str = Field(default="spread", pattern=TASK)
    """Name of the rule that says whether a group is informative: `spread`, `pass_rate_between`, `every`, or one that is installed where the
    supervisors run."""
    policy_args: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Numbers that it takes: `low`, `high` and `pass_at` of `pass_rate_between`."""
    cancel: Annotated[CancelRule, Field(strict=False)] = CancelRule.DEFAULT
    """What happens to groups in flight that nobody needs when the step is complete."""
    surplus: Annotated[Surplus, Field(strict=False)] = Surplus.CARRY
    """What happens to an informative group that no open step has room for."""
    max_staleness: int = Field(default=1, ge=0, le=1_000_000)
    """Most updates of the policy between the oldest version that sampled a group and the one that is trained with it."""
    on_stale: Annotated[OnStale, Field(strict=False)] = OnStale.MARK
    """What happens to a group that is older."""
    group_deadline_s: float = Field(default=0.0, ge=0, le=30 * DAY_S)
    """A group that is open so long after its launch ends with the members it has; 0 = no deadline."""
    loss: LossPolicy = Field(default_factory=dict)
    """What is trained of a member, by why it stopped: `train`, `mask`, `exclude`. Where nothing is said: `mask` for `tokens`, `context` and
    `time`, else `train`."""
    min_members: int = Field(default=0, ge=0, le=1024)
    """Fewest members that must end well; 0 = three quarters of `n`, rounded up."""
    max_redraws: int = Field(default=2, ge=0, le=1000)
    """How often a prompt is drawn again whose group had too few."""
    reward_low: float | None = None
    """A reward below is a fault of the grader; none = no bound."""
    reward_high: float | None = None
    keep_filtered: float = Field(default=0.0, ge=0, le=1)
    """Share of filtered groups, by a hash of their prompts' ids, whose trajectories stay until the ack, to be looked at."""
    version: str = Field(default="", pattern=VERSION)
    """Label of the policy that is expected to sample; empty = any."""
    ahead: int = Field(default=1, ge=0, le=MAX_AHEAD)
    """Steps that are open beyond the one that the trainer has, so that rollouts go on while it trains. Default: `max_staleness`, since a
    group for the furthest of them is that old when it is trained."""
    deterministic: bool = False
    """What is trained follows from run seed, prompts and weights alone, whatever closes first (ADR 11). Sets `ahead` to 0, `min_members`
    to `n` and `cancel` to `all`."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_from_others(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        if data.get("deterministic") is True:
            return {"ahead": 0, "cancel": CancelRule.ALL, "min_members": data.get("n", 0), **data}
        age = data.get("max_staleness")
        if isinstance(age, int) and not isinstance(age, bool):
            return {"ahead": max(0, min(age, MAX_AHEAD)), **data}
        return data

    @model_validator(mode="after")
    def _is_exact(self) -> Self:
        _check_exact(self.sampling, "train with temperature and penalties alone; a ValidationRequest may cut")
        return self

    @model_validator(mode="after")
    def _deterministic_fits(self) -> Self:
        if self.deterministic:
            for name, forced in (("ahead", 0), ("cancel", CancelRule.ALL), ("min_members", self.n)):
                if getattr(self, name) != forced:
                    raise ValueError(f"expected {name} to be left out, or {forced}, in a deterministic step, got {getattr(self, name)}")
        return self

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        if self.min_members > self.n:
            raise ValueError(f"expected min_members ({self.min_members}) to be at most n ({self.n})")
        if self.n == 1 and self.policy == "spread":
            # each group would be filtered, until the data set is used up
            why = "which needs members that differ, got 1; policy='every' filters nothing"
            raise ValueError(f"expected n of at least 2 with policy 'spread', {why}")
        try:
            check_policy(self.policy, self.policy_args)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        if None not in (self.reward_low, self.reward_high) and self.reward_low >= self.reward_high:  # type: ignore[operator]
            raise ValueError(f"expected reward_low ({self.reward_low}) to be below reward_high ({self.reward_high})")
        return self

    def template(self) -> JobTemplate:
        """The message."""
        return replace(super().template(), deterministic=self.deterministic)

    def spec(self) -> StepSpec:
        """The message."""
        return StepSpec(
            target=self.groups,
            n=self.n,
            over=self.over,
            eps=self.eps,
            component=self.informative_on,
            policy=self.policy,
            policy_args=dict(self.policy_args),
            cancel=self.cancel,
            surplus=self.surplus,
            max_staleness=self.max_staleness,
            on_stale=self.on_stale,
            group_deadline_s=self.group_deadline_s,
            loss={**DEFAULT_LOSS, **self.loss},
            min_members=self.min_members,
            max_redraws=self.max_redraws,
            reward_low=-math.inf if self.reward_low is None else self.reward_low,
            reward_high=math.inf if self.reward_high is None else self.reward_high,
            version=self.version,
            keep_filtered=self.keep_filtered,
            outside=self.reward is RewardSource.OUTSIDE,
            deterministic=self.deterministic,
        )


def encode_prompt(prompt_id: str, data: Json, *, max_body_bytes: int, field: str = "prompt", first_member: int = 0) -> bytes:
    """Body of one prompt.

    Args:
        prompt_id: id within the run.
        data: a map that `plain_map` made.
        max_body_bytes: bound of one body (`QueueSettings.max_body_bytes`).
        field: what the caller calls this prompt, for the error.
        first_member: see `messages.Prompt`.

    Raises:
        InvalidRequest: above the bound.
    """
    body = encode(Prompt(id=prompt_id, data=data, first_member=first_member))
    if len(body) > max_body_bytes:
        longest = max(data, key=lambda name: len(encode(Prompt(id="", data={name: data[name]}))))
        raise InvalidRequest(
            f"expected at most {max_body_bytes:,} bytes, got {len(body):,} (most of it in {longest!r}): "
            "send a path or a name instead of the content, or raise max_body_bytes",
            field=field,
        )
    return body


def prompt_data(row: object, *, field: str) -> dict[str, object]:
    """A row of a data set as the data of a prompt.

    Raises:
        InvalidRequest: not a map, empty, or with values that cannot travel.
    """
    if not isinstance(row, Mapping):
        raise InvalidRequest(f"expected a map of names to values, got {shown(row)}: map each row to a dict first", field=field)
    try:
        return _not_empty(plain_map(row))
    except ValueError as error:
        raise InvalidRequest(str(error), field=field) from None


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
    "JobRequest",
    "LimitsRequest",
    "Request",
    "SamplingRequest",
    "StepRequest",
    "TemplateRequest",
    "bounded_int",
    "bounded_number",
    "bounded_seconds",
    "encode_prompt",
    "new_id",
    "plain_map",
    "prompt_data",
    "run_id",
    "template_id",
]
