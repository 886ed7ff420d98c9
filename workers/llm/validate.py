"""Checks that an answer passes before it is believed.

Every check names what it found (`InvalidResponse.check`). None repairs: a missing logprob is not 0.0, ids are not made from text,
a gap in the spans is not closed. Zero is a real logprob (certainty) and passes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from pipeline.engines.errors import InvalidResponse
from pipeline.engines.exchange import SAME
from workers.llm.backend import Finish, Span

MAX_ID = 2**32 - 1
LOWEST_LOGPROB = -9000.0
"""Engines write -9999.0 where they have no number; no sampled token is that improbable."""
HIGHEST_LOGPROB = 1e-3
"""A probability may round a little above one, not more."""
LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
"""A label of weights that a record takes, whole."""
_WHOLE_NUMBERS, _REAL_NUMBERS = frozenset({int}), frozenset({int, float})
"""Types by `type`, since bool is an int, too. Every token of every turn is looked at, so what looks at one by one only names the fault."""


def check_ids(ids: object, what: str) -> list[int]:
    """`ids` as a list of token ids."""
    if not isinstance(ids, list):
        raise InvalidResponse("ids", f"expected a list of {what}, got {type(ids).__name__}")
    if _WHOLE_NUMBERS.issuperset(map(type, ids)) and min(ids, default=0) >= 0 and max(ids, default=0) <= MAX_ID:
        return ids
    position, id_ = next((i, id_) for i, id_ in enumerate(ids) if type(id_) is not int or not 0 <= id_ <= MAX_ID)
    raise InvalidResponse("ids", f"{what} at {position} is {id_!r}, expected a token id")


def check_echo(prompt_ids: Sequence[int], echoed: object) -> None:
    """The server must have read exactly the prompt we sent: some truncate without a word."""
    if echoed in (SAME, prompt_ids):
        return
    if echoed is None:
        raise InvalidResponse("echo", "the server did not echo the prompt's ids; it must support return_token_ids")
    ids = check_ids(echoed, "prompt ids")
    if ids == list(prompt_ids):
        return
    first = next((i for i, (a, b) in enumerate(zip(prompt_ids, ids, strict=False)) if a != b), min(len(prompt_ids), len(ids)))
    raise InvalidResponse("echo", f"sent {len(prompt_ids)} prompt ids, {len(ids)} came back; first difference at {first}")


def check_logprobs(logprobs: Sequence[object], n_tokens: int) -> list[float]:
    """One finite number a token."""
    if len(logprobs) != n_tokens:
        raise InvalidResponse("logprobs_length", f"{n_tokens} tokens but {len(logprobs)} logprobs")
    if not _REAL_NUMBERS.issuperset(map(type, logprobs)):
        position, value = next((i, value) for i, value in enumerate(logprobs) if type(value) not in _REAL_NUMBERS)
        raise InvalidResponse("logprobs_finite", f"logprob at {position} is {value!r}, expected a number")
    values = [*map(float, cast("Sequence[float]", logprobs))]
    # The least and the largest of numbers are undefined with a NaN among them, which makes their sum one.
    if min(values, default=0.0) > LOWEST_LOGPROB and max(values, default=0.0) <= HIGHEST_LOGPROB and not math.isnan(sum(values)):
        return values
    position, number = next((i, number) for i, number in enumerate(values) if not LOWEST_LOGPROB < number <= HIGHEST_LOGPROB)
    raise InvalidResponse("logprobs_finite", f"logprob at {position} is {number!r}, expected a finite number at most 0")


def check_finish(finish: object, n_tokens: int, max_tokens: int) -> Finish:
    """A finish we know, with a number of tokens that fits it."""
    if n_tokens > max_tokens:
        raise InvalidResponse("too_many_tokens", f"asked for at most {max_tokens} tokens, got {n_tokens}")
    if finish == "stop" or finish == "length":
        if n_tokens == 0:
            raise InvalidResponse("no_tokens", f"finish {finish!r} without a single token")
        return "stop" if finish == "stop" else "length"
    if finish == "abort":
        return "abort"
    raise InvalidResponse("finish", f"expected stop, length or abort, got {finish!r}")


def check_spans(raw: object, n_tokens: int) -> tuple[Span, ...]:
    """Version spans that cover the output in order, without gaps."""
    if not isinstance(raw, list):
        raise InvalidResponse("spans", f"expected a list of version spans, got {type(raw).__name__}")
    spans = []
    for entry in raw:
        match entry:
            case {"version": str(version), "start": int(start), "end": int(end)}:
                check_label(version)
                if end > start:
                    spans.append(Span(version=version, start=start, end=end))
                elif end < start:
                    raise InvalidResponse("spans", f"span ends before it starts: {entry!r}")
            case _:
                raise InvalidResponse("spans", f"expected version, start and end, got {entry!r}")
    edges = [(0, 0), *((s.start, s.end) for s in spans), (n_tokens, n_tokens)]
    if any(left[1] != right[0] for left, right in pairwise(edges)):
        raise InvalidResponse("spans", f"version spans {raw!r} do not cover {n_tokens} tokens without a gap")
    return tuple(spans)


def check_label(version: str) -> None:
    """What tokens bear must be a label that the record can keep: one refused there would cost the whole trajectory."""
    if not LABEL.fullmatch(version):
        raise InvalidResponse("version", f"expected a printable label of 1 to 200 characters, got {version[:80]!r}")


def check_stop_reason(raw: object, ids: Sequence[int], stop: Sequence[str]) -> int | str | None:
    """The last token, one of the stop strings asked for, or nothing: text is cut by it."""
    if raw is None or (type(raw) is int and list(ids[-1:]) == [raw]) or (isinstance(raw, str) and raw in stop):
        return raw
    raise InvalidResponse("stop_reason", f"expected the last token, a stop string that was asked for or null, got {raw!r:.80}")
