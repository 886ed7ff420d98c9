"""What the run asks of the pipeline: its steps and its validations."""

from __future__ import annotations

from pathlib import Path

from examples.train_tiny.problems import held_out_problems
from pipeline.supervisor.step_spec import CancelRule, Surplus
from pipeline.validation_request import ValidationRequest
from trainer_client import ChatRequest, LimitsRequest, SamplingRequest, StepRequest

GROUPS, MEMBERS = 8, 8
_SAMPLING = SamplingRequest(temperature=1.0, max_tokens=40)
"""A call is seven tokens and two numbers; what rambles is cut."""
_LIMITS = LimitsRequest(max_turns=3, max_sampled_tokens=80, max_context_tokens=192, max_observation_tokens=40, tool_timeout_s=30)


def step_request(
    tokenizer: Path,
    seed: int,
    *,
    groups: int = GROUPS,
    n: int = MEMBERS,
    over: float = 1.5,
    cancel: CancelRule = CancelRule.DEFAULT,
    surplus: Surplus = Surplus.CARRY,
) -> StepRequest:
    """One optimizer step: `groups` informative groups of `n`, at most one update old."""
    return StepRequest(
        task="math",
        groups=groups,
        n=n,
        over=over,
        cancel=cancel,
        surplus=surplus,
        max_staleness=1,
        run_seed=seed,
        sampling=_SAMPLING,
        limits=_LIMITS,
        chat=ChatRequest(tokenizer=str(tokenizer)),
    )


def held_out_request(tokenizer: Path, seed: int, *, tasks: int) -> ValidationRequest:
    """One sample of each of the first `tasks` held-out problems, drawn as in training."""
    rows = [problem.row() for problem in held_out_problems()[:tasks]]
    return ValidationRequest(
        task="math", prompts=rows, n=1, run_seed=seed, sampling=_SAMPLING, limits=_LIMITS, chat=ChatRequest(tokenizer=str(tokenizer))
    )
