"""Faults on demand: what a server does when it does not do what it should.

A fault is armed for a number of requests and a path, then gone. A corruption bends a good answer in one way, so that every check of the
client can be seen to fail (`vllm_faults.py`, `sglang_faults.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from workers.llm.vllm_wire import GENERATE

Kind = Literal["status", "disconnect", "break_off", "hang", "corrupt", "restart"]
Corruption = Literal[
    "no_echo",
    "other_echo",
    "shorter_echo",
    "shorter_logprobs",
    "swapped_logprobs",
    "no_logprobs",
    "null_logprob",
    "infinite_logprob",
    "sentinel_logprob",
    "positive_logprob",
    "other_token_id",
    "unknown_finish",
    "error_finish",
    "gap_in_spans",
    "short_spans",
    "two_choices",
    "negative_id",
    "too_many_tokens",
    "other_request_id",
    "not_json",
    "html",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    `status` answers with that status; `disconnect` closes the connection before any answer; `break_off` in the middle of one; `hang`
    never answers; `corrupt` bends the answer. `restart`: the server ended, and a request that came over a connection of its own meets the
    one that was started anew; any other connection breaks without an answer. Only generation is broken off or corrupted.
    """

    kind: Kind
    path: str = GENERATE
    times: int = 1
    after: int = 0
    """Requests of its path that it lets pass first."""
    status: int = 500
    message: str = "made to fail"
    retry_after_s: int | None = None
    corruption: Corruption = "null_logprob"


class Faults:
    """The faults that are armed, in order."""

    def __init__(self) -> None:
        self._armed: list[Fault] = []

    def arm(self, fault: Fault) -> None:
        """From now on, for `fault.times` requests of its path."""
        if fault.kind not in get_args(Kind) or fault.corruption not in get_args(Corruption) or fault.times < 1 or fault.after < 0:
            raise ValueError(f"no such fault: {fault}")
        self._armed.append(fault)

    def take(self, path: str) -> Fault | None:
        """The fault that this request meets, counted down."""
        for place, fault in enumerate(self._armed):
            if fault.path == path:
                if fault.after:
                    self._armed[place] = replace(fault, after=fault.after - 1)
                    return None
                if fault.times > 1:
                    self._armed[place] = replace(fault, times=fault.times - 1)
                else:
                    del self._armed[place]
                return fault
        return None
