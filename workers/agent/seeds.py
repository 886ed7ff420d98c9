"""Seeds of model calls: a function of who asks, so that members of a group never share one and a repeated call repeats itself."""

from __future__ import annotations

import hashlib

from pipeline.messages import JobSpec

MOST_SERVERS = 2**31
"""Far above any run's servers, and exact as a number of Lua."""


def call_seed(job: JobSpec, turn: int, part: int = 0) -> int:
    """Seed of one model call, a whole number below 2^63.

    How often a prompt was drawn before depends on what closed first: a deterministic job's seeds do not know it.

    Args:
        turn: index of the turn.
        part: index of the call within the turn; a turn that an abort interrupted takes several.
    """
    draw = 0 if job.template.deterministic else job.draw
    who = (job.template.run_seed, job.prompt.id, draw, job.member, turn, part)
    return _number(who)


def server_pin(job: JobSpec) -> int | None:
    """Which of its run's servers a deterministic job has: the same in every run and attempt. None = whichever is free."""
    return _number((job.prompt.id, job.member)) % MOST_SERVERS if job.template.deterministic else None


def _number(who: tuple[object, ...]) -> int:
    digest = hashlib.blake2b(repr(who).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
