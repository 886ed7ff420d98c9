"""`sampling_params` of the original's requests, and what each of them means here.

There it is one bag: some names are the agent's, some the model client's, all the rest its inference settings. Here each name is known, or
the call is refused: a misspelt `temperature` would be training on another one than was asked for. What is known and has no effect is said
in the answer (`not_used`), with why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops.gateway.refusals import Refusal
from pipeline.near_names import hint
from pipeline.request_errors import shown

SAMPLING: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
LIMITS: Mapping[str, str] = {"max_iterations": "max_turns", "max_model_len": "max_context_tokens"}
READ_APART = ("token_level_generation", "custom_tokenizer", "enable_thinking", "seed")
_CLIENT = "it sets up a model client that is not used here"
NO_EFFECT: Mapping[str, str] = {
    "api_key": "RUN workers have the key of the model servers, from a file (worker.model_key_file); this one was dropped unread",
    "model": "a run's servers hold one policy, whatever it is called",
    "native_tool_calling": "tool calls are read from the text that was sampled, as the model's family writes them",
    "ensure_thinking_end_properly": "nothing is ever added to what was sampled",
    "strict_loop_detector": "a job that repeats itself ends as `stuck` in any case",
    "max_input_tokens": "max_model_len bounds prompt and answer together",
    "enable_vision": "no task here has images",
    "enable_a11y_tree": "no task here has a screen",
    **dict.fromkeys(
        (
            *("modify_params", "log_completions", "log_completions_folder", "drop_params", "caching_prompt", "disable_vision", "base_url"),
            *("api_version", "custom_llm_provider", "timeout", "num_retries", "retry_multiplier", "retry_min_wait", "retry_max_wait"),
            *(
                "input_cost_per_token",
                "output_cost_per_token",
                "ollama_base_url",
                "reasoning_effort",
                "max_message_chars",
                "safety_settings",
            ),
            *("aws_access_key_id", "aws_secret_access_key", "aws_region_name", "openrouter_site_url", "openrouter_app_name"),
            *("disable_stop_word", "completion_kwargs", "correct_num", "extended_thinking", "stop", "logprobs", "n", "stream"),
        ),
        _CLIENT,
    ),
}
"""Names that its trainers may send and that change nothing here, with why."""
NO_EFFECT_AGENT = "it sets up an agent that is not used here"


@dataclass(slots=True)
class Params:
    """What the parameters of one request say."""

    sampling: dict[str, object] = field(default_factory=dict)
    limits: dict[str, object] = field(default_factory=dict)
    chat: dict[str, object] = field(default_factory=dict)
    others: dict[str, object] = field(default_factory=dict)
    not_used: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    with_tokens: bool = False


def read_params(given: Mapping[str, object]) -> Params:
    """What they say.

    Raises:
        Refusal: 422, nobody knows one of them, or it cannot be read.
    """
    params = Params()
    for name, value in given.items():
        if value is None:
            continue
        if name in SAMPLING:
            params.sampling[SAMPLING[name]] = _sampled(name, value)
        elif name in LIMITS:
            params.limits[LIMITS[name]] = value
        elif name in READ_APART:
            _read_apart(params, name, value)
        elif name in NO_EFFECT:
            params.not_used[name] = NO_EFFECT[name]
        elif name.startswith("enable_"):
            params.not_used[name] = NO_EFFECT_AGENT
        else:
            known = (*SAMPLING, *LIMITS, *READ_APART, *NO_EFFECT)
            raise Refusal(
                422, "unknown_parameter", f"nobody here knows {name[:80]!r}; {_near(name, known)}", field=f"sampling_params.{name[:80]}"
            )
    return params


def _near(name: str, known: tuple[str, ...]) -> str:
    near = hint(name, known)
    return near if near.startswith("did you") else f"those with an effect are {', '.join((*SAMPLING, *LIMITS, *READ_APART))}"


def _sampled(name: str, value: object) -> object:
    """A value as it is meant there: -1 is no bound of `top_k`, and a whole number is a number."""
    if name == "top_k" and isinstance(value, int) and value < 0:
        return 0
    if name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return value


def _read_apart(params: Params, name: str, value: object) -> None:
    if name == "seed":
        params.others["run_seed"] = value
    elif name == "custom_tokenizer":
        if isinstance(value, str) and value.startswith("/"):
            params.chat["tokenizer"] = value
        else:
            params.not_used[name] = (
                "a tokenizer is a path on the RUN workers: send one, or set it in gateway.requests_file (chat.tokenizer)"
            )
    elif not isinstance(value, bool):
        raise Refusal(422, "invalid", f"expected true or false, got {shown(value)}", field=f"sampling_params.{name}")
    elif name == "token_level_generation":
        params.with_tokens = value
    elif not value:
        params.chat["thinking"] = "off"


__all__ = ["LIMITS", "NO_EFFECT", "READ_APART", "SAMPLING", "Params", "read_params"]
