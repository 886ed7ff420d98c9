"""Recorded logprobs recomputed by teacher forcing: a server is given the recorded ids and says how probable each sampled token is.

What is asked for, and what cannot be, is `scoring_plan.py`; in which words, `scoring_wire.py`. Only tokens of the weights that the server
holds are compared; its label is asked before and after. Prefix caches are not trusted: what asks for a prompt's tokens reads none, and the
rest has a salt of its own.

Legend for array shapes: T tokens of one segment.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from pipeline.engines import Exchange, InvalidResponse, ModelError
from pipeline.messages import Sampling, Trajectory, Turn
from workers.llm import scoring_wire as wire
from workers.llm.backend import Caps
from workers.llm.connect import connect_backend
from workers.llm.logprob_distance import F64, Distances
from workers.llm.scoring_plan import plan_of
from workers.llm.wire import Body

CALL_TIMEOUT_S = 300.0
TRIES = 4
FIRST_DELAY_S = 0.2
MOST_CALLS = 16
"""In flight at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What a server says of a trajectory's sampled tokens."""

    logprobs_T: tuple[F64, ...]
    """One array a segment, nats; NaN where the server was not asked, -inf where it leaves the token no probability."""
    skipped: Mapping[str, int]
    """Sampled tokens that are not comparable, by why."""


class VersionMoved(ModelError):
    """The server got other weights while it was asked."""

    def __init__(self, server: str, before: str, after: str) -> None:
        super().__init__(f"model server {server} had weights {before!r} before and {after!r} after its logprobs were asked for: ask again")


class TeacherForcing:
    """One server that recomputes. An async context manager.

    Args:
        url: `http://host:port` or `unix:/path/to.sock`.
        model: name at the server; empty = its first.
        version: label of the weights it holds; empty = as it says.
    """

    def __init__(self, url: str, *, model: str = "", api_key: str = "", version: str = "") -> None:
        self._backend = connect_backend(url, model=model, api_key=api_key)
        self._http = Exchange(url, api_key)
        self._given_version = version
        self._salt = f"teacher-forcing-{uuid.uuid4().hex}"
        self._number = 0
        self._calls = asyncio.Semaphore(MOST_CALLS)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._backend)
        self._http.open()
        self._stack.push_async_callback(self._http.close)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def caps(self) -> Caps:
        """What the server can do.

        Raises:
            ModelError
        """
        return await self._backend.probe()

    async def version(self) -> str:
        """The label of its weights; empty = neither it nor the caller says.

        Raises:
            ModelError
        """
        return self._given_version or await self._backend.control.version()

    async def recompute(self, trajectory: Trajectory) -> Recomputed:
        """Logprobs of what was sampled, as far as this server can say.

        Args:
            trajectory: one that keeps its promises (`workers/agent/invariants.py`).

        Raises:
            ModelError: no answer to be believed, or the weights changed meanwhile (`VersionMoved`).
        """
        caps, version = await self.caps(), await self.version()
        plan = plan_of(trajectory, caps, version)
        logprobs_T = tuple(np.full(len(segment.token_ids), math.nan) for segment in trajectory.segments)

        async def segment_at_once(index: int, places: Sequence[int]) -> None:
            ids = trajectory.segments[index].token_ids[: places[-1] + 1].tolist()
            found = await self._ask(caps, lambda name: wire.prompt_body(caps, ids, name, self._salt))
            logprobs = wire.read_prompt(caps, found, ids)
            for place in places:
                logprobs_T[index][place] = logprobs[place - 1]

        async def one_token(index: int, place: int, sampling: Sampling) -> None:
            ids = trajectory.segments[index].token_ids[: place + 1].tolist()
            *before, token = ids
            found = await self._ask(caps, lambda name: wire.token_body(caps, before, token, sampling, name, self._salt))
            logprobs_T[index][place] = wire.read_token(caps, found, token)

        try:
            async with asyncio.TaskGroup() as asking:
                for index, places in plan.at_once.items():
                    asking.create_task(segment_at_once(index, places), name=f"score segment {index}")
                for index, place, sampling in plan.one_by_one:
                    asking.create_task(one_token(index, place, sampling), name=f"score token {place} of segment {index}")
        except* ModelError as errors:
            raise _first_of(errors) from None
        if (after := await self.version()) != version:
            raise VersionMoved(self._backend.url, version, after)
        return Recomputed(logprobs_T=logprobs_T, skipped=plan.skipped)

    async def _ask(self, caps: Caps, body: Callable[[str], Body]) -> object:
        path = wire.PATHS[caps.endpoint]
        for tries in range(1, TRIES + 1):
            async with self._calls:
                self._number += 1  # no await from here to the name: two calls of one name would be refused
                try:
                    return await self._http.post(path, body(f"{self._salt}-{self._number}"), timeout_s=CALL_TIMEOUT_S)
                except ModelError as error:
                    if not error.retryable or isinstance(error, InvalidResponse) or tries == TRIES:
                        raise
            await asyncio.sleep(FIRST_DELAY_S * 2 ** (tries - 1))
        raise AssertionError("the last try returns or raises")


def distances(trajectory: Trajectory, recomputed: Recomputed) -> Distances:
    """How far the recorded logprobs are from the recomputed ones."""
    d_T = [segment.logprobs.astype(np.float64) - found for segment, found in zip(trajectory.segments, recomputed.logprobs_T, strict=True)]
    turns = [turn for turn in trajectory.turns if turn.end > turn.start]
    edges = {name: np.array([d_T[turn.segment][at(turn)] for turn in turns]) for name, at in (("first", _first), ("last", _last))}
    return Distances(
        all_D=_compared(np.concatenate(d_T) if d_T else np.zeros(0)), first_D=_compared(edges["first"]), last_D=_compared(edges["last"])
    )


def _first(turn: Turn) -> int:
    return turn.start


def _last(turn: Turn) -> int:
    return turn.end - 1


def _compared(d_D: F64) -> F64:
    found: F64 = d_D[~np.isnan(d_D)]
    return found


def _first_of(errors: BaseExceptionGroup[ModelError]) -> ModelError:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
