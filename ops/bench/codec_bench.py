"""32,768 tokens with logprobs and masks, to bytes and back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from ops.bench.report import Report
from pipeline import codec
from pipeline.messages import Segment, StopReason, Trajectory, VersionSpan

TOKENS = 32_768
ROUNDS = 300
BYTES_A_TOKEN = 4 + 4 + 1 + 1
"""u32 id, f32 logprob, two u8 masks."""


def trajectory() -> Trajectory:
    """One segment of text-like ids, half of them sampled."""
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.25, TOKENS), 151_936).astype(np.uint32)
    sampled = (np.arange(TOKENS) % 2).astype(np.uint8)
    logprobs = np.where(sampled == 1, -rng.exponential(0.5, TOKENS), np.nan).astype(np.float32)
    segment = Segment(
        token_ids=ids,
        sampled_mask=sampled,
        loss_mask=sampled,
        logprobs=logprobs,
        versions=(VersionSpan(version="1.0", start=0, end=TOKENS),),
    )
    return Trajectory(segments=(segment,), turns=(), stop=StopReason.FINISHED)


def run(say: Callable[[str], None]) -> Report:
    """Medians of `ROUNDS` calls each."""
    made = trajectory()
    body = codec.encode(made)
    say(f"{TOKENS} tokens, {len(body):,} bytes, {ROUNDS} rounds each")
    return Report(
        name="codec",
        metrics={
            "encode_ms": _median_ms(lambda: codec.encode(made)),
            "decode_ms": _median_ms(lambda: codec.decode(Trajectory, body)),
            "size_to_raw_ratio": len(body) / (TOKENS * BYTES_A_TOKEN),
        },
        bounds={"encode_ms": ("<=", 0.1), "decode_ms": ("<=", 0.1), "size_to_raw_ratio": ("<=", 1.05)},
    )


def _median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000
