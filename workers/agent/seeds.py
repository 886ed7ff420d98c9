"""Seeds of model calls: a function of who asks, so that members of a group never share one and a repeated call repeats itself."""

from __future__ import annotations

import hashlib

from pipeline.messages import JobSpec


def call_seed(job: JobSpec, turn: int, part: int = 0) -> int:
    """Seed of one model call, a whole number below 2^63.

    Args:
        turn: index of the turn.
        part: index of the call within the turn; a turn that an abort interrupted takes several.
    """
    who = (job.template.run_seed, job.prompt.id, job.draw, job.member, turn, part)
    digest = hashlib.blake2b(repr(who).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
