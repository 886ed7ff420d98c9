"""A server serves when it has sampled a token, however long that takes, and not when it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.llm_server.starting import first_token
from pipeline.engines.errors import Retryable, RetryReason
from workers.llm import Caps

CAPS = Caps(
    server_version="0.32.0",
    model="m",
    max_model_len=100,
    endpoint="generate",
    logprobs_shape="token_id",
    logprobs_mode="processed",
    has_spans=True,
    abort_path="",
    reports_version=True,
    can_pause=True,
    rejects_while_paused=False,
)


def slow(reason: RetryReason) -> Retryable:
    return Retryable(reason, "http://x", "no answer")


async def asked(answers: Iterator[Retryable | Caps], *, is_late: bool = False) -> Caps:
    """What comes of a server that gives these answers."""

    async def probe() -> Caps:
        answer = next(answers)
        if isinstance(answer, Retryable):
            raise answer
        return answer

    return await first_token(probe, lambda: is_late)


async def test_a_first_call_that_compiles_is_asked_for_again() -> None:
    """A probe gave up after 60 s, and the launcher of a model that was nearly there with it."""
    assert await asked(iter([slow("timeout"), slow("timeout"), CAPS])) is CAPS


@pytest.mark.parametrize(("reason", "is_late"), [("engine_failed", False), ("closed", False), ("timeout", True)])
async def test_a_server_that_fails_or_is_late_is_not_waited_for(reason: RetryReason, is_late: bool) -> None:
    with pytest.raises(Retryable, match=reason):
        await asked(iter([slow(reason)]), is_late=is_late)
