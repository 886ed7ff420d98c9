"""Answers of a model server as its client gives them, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

from workers.llm import GenResult, Span


def a_result(ids: Sequence[int], logprobs: Sequence[float] | None = None, versions: Sequence[str] = ("1.0",)) -> GenResult:
    """One answer, whose tokens are shared out evenly among versions."""
    edges = [len(ids) * i // len(versions) for i in range(len(versions) + 1)]
    return GenResult(
        output_ids=[*ids],
        logprobs=[-0.5] * len(ids) if logprobs is None else [*logprobs],
        finish="stop",
        stop_reason=None,
        spans=tuple(Span(version=v, start=edges[i], end=edges[i + 1]) for i, v in enumerate(versions) if edges[i + 1] > edges[i]),
        version_source="spans",
        version_after="",
        cached_tokens=None,
        logprobs_mode="processed",
        server="s",
        server_request_id="r",
        seconds=0.1,
    )
