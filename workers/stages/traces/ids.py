"""Ids of traces and spans, computed from what they tell of: whoever knows a job knows where its spans are."""

from __future__ import annotations

import hashlib

from pipeline.trace_context import SpanPlace

_PERSON = b"rollstream-trace"


def job_span(run: str, incarnation: int, job: str) -> SpanPlace:
    """The span `job`, in the trace that a job has where no trainer brought one."""
    digest = _digest(f"{run}\0{incarnation}\0{job}", 24)
    return SpanPlace(int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1, is_sampled=True)


def attempt_span_id(run: str, incarnation: int, job: str, attempt: int) -> int:
    """Of one attempt in whichever stage: attempts of a job are counted through all of them."""
    return int.from_bytes(_digest(f"{run}\0{incarnation}\0{job}\0{attempt}", 8), "big") or 1


def _digest(text: str, n_bytes: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=n_bytes, person=_PERSON).digest()
