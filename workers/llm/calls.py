"""The calls of one server that are in flight here; the same for every wire.

Each call has a **name** at the server, which is the request's id, or that with a mark when it is sent again: of a connection that closed
before any answer nobody knows whether the first request was read and is being sampled.

Invariants:
  1. A call is sent at most twice, the second time only when the first connection closed before any answer.
  2. No two calls that may be at the server have one name: servers refuse a name that they know, or end both by it.
  3. A call that nobody waits for any more is ended in two ways, by its name and by closing its connection: a proxy between us may hide the
     second, and some servers look for it every few seconds only.
  4. Calls that are aborted in one turn of the loop are aborted together.
  5. `close` returns when all that is in flight was ended so, or did not answer in time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from pipeline.engines.errors import ModelError, Retryable
from pipeline.engines.exchange import Exchange
from workers.llm.backend import GenRequest
from workers.llm.gathered import Gathered
from workers.llm.wire import Wire

END_CALL_TIMEOUT_S = 0.5
"""Abort by name on the way out; the connection closes after it in any case."""
SECOND_TRY = "-again"
MOST_UNANSWERED = 1024
"""Names kept of calls that got no answer; the oldest are long gone at the server."""


class Calls:
    """Sends, awaits and ends calls over connections that the caller opens and closes."""

    def __init__(self, http: Exchange) -> None:
        self._http = http
        self._in_flight: dict[str, tuple[Wire, asyncio.Task[object]]] = {}
        """By name."""
        self._unanswered: dict[str, None] = {}
        """Names that may still be at the server though nobody waits for them here, oldest first."""
        self._aborts: Gathered[tuple[Wire, str]] = Gathered(self._post_aborts, "abort model calls")

    async def send(self, wire: Wire, request: GenRequest, *, timeout_s: float) -> tuple[object, str]:
        """The body of the answer, and the name under which it was asked for.

        Raises:
            Retryable, Refused, InvalidResponse: no answer, or none that is JSON.
        """
        until_s = asyncio.get_running_loop().time() + timeout_s
        try:
            return await self._try(wire, request, until_s, timeout_s)
        except Retryable as error:
            if error.reason != "closed":
                raise
        return await self._try(wire, request, until_s, timeout_s)

    async def abort(self, wire: Wire | None, request_id: str) -> list[str]:
        """End the calls of a request, also those of another process.

        One of this process returns what it has; at a server without an abort route its connection is closed instead.

        Args:
            wire: of calls that are not in flight here; None = not known.

        Returns:
            Names that may be at the server, which only one who knows its wire can end.
        """
        named: list[tuple[Wire, str]] = []
        unknown: list[str] = []
        for name in self._names_at_server(request_id):
            its_wire, call = self._in_flight.get(name, (wire, None))
            if its_wire is None:
                unknown.append(name)
            elif its_wire.caps.abort_path:
                named.append((its_wire, name))
            elif call is not None:
                call.cancel()
        if named:
            await self._aborts(*named)
        return unknown

    async def close(self) -> None:
        """End calls in flight; those that can return what they have. The connections must be open until this returns."""
        calls = [call for _, call in self._in_flight.values()]
        can_return = {name: its for name, its in self._in_flight.items() if its[0].caps.abort_path}
        try:
            async with asyncio.timeout(END_CALL_TIMEOUT_S):
                if can_return:
                    await self._aborts(*((wire, name) for name, (wire, _) in can_return.items()))
                await self._aborts.close()  # those of other processes' calls
                if can_return:
                    await asyncio.wait([call for _, call in can_return.values()])
        except (TimeoutError, ModelError):
            pass  # closing the connections aborts as well
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _try(self, wire: Wire, request: GenRequest, until_s: float, timeout_s: float) -> tuple[object, str]:
        name = self._free_name(request.request_id)
        echo = ("prompt_token_ids", request.prompt_ids)
        posting = self._http.post(wire.path, wire.write(request, name), headers=wire.headers(request), timeout_s=None, echo=echo)
        call = asyncio.create_task(posting, name=f"generate {name}")
        self._in_flight[name] = (wire, call)
        is_answered = False
        try:
            async with asyncio.timeout_at(until_s):
                payload = await asyncio.shield(call)
            is_answered = True
            return payload, name
        except TimeoutError:
            await self._end(wire, name, call)
            raise Retryable("timeout", self._http.url, f"no answer within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is None or not me.cancelling():
                raise Retryable("aborted", self._http.url, "the call was ended by closing its connection") from None
            await self._end(wire, name, call)
            raise
        except ModelError as error:
            is_answered = not isinstance(error, Retryable) or error.status != 0 or error.reason == "unreachable"
            raise
        finally:
            del self._in_flight[name]
            if not is_answered:
                self._remember(name)

    async def _end(self, wire: Wire, name: str, call: asyncio.Task[object]) -> None:
        try:
            if wire.caps.abort_path and not call.done():
                async with asyncio.timeout(END_CALL_TIMEOUT_S):
                    await self._aborts((wire, name))
        except (TimeoutError, ModelError):
            pass  # closing the connection, below, aborts as well
        finally:
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def _post_aborts(self, calls: Sequence[tuple[Wire, str]]) -> None:
        by_wire: dict[int, tuple[Wire, list[str]]] = {}
        for wire, name in calls:
            by_wire.setdefault(id(wire), (wire, []))[1].append(name)
        for wire, names in by_wire.values():
            await wire.abort(names)

    # ---- names

    def _free_name(self, request_id: str) -> str:
        return next(name for name in _names(request_id) if not self._may_be_at_server(name))

    def _names_at_server(self, request_id: str) -> list[str]:
        """Those we know of; else those that another process would have used."""
        usual = [*itertools.islice(_names(request_id), 2)]
        more = itertools.takewhile(self._may_be_at_server, itertools.islice(_names(request_id), 2, None))
        return [*filter(self._may_be_at_server, usual), *more] or usual

    def _may_be_at_server(self, name: str) -> bool:
        return name in self._in_flight or name in self._unanswered

    def _remember(self, name: str) -> None:
        self._unanswered[name] = None
        if len(self._unanswered) > MOST_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]


def _names(request_id: str) -> itertools.chain[str]:
    return itertools.chain((request_id, request_id + SECOND_TRY), (f"{request_id}{SECOND_TRY}{number}" for number in itertools.count(2)))
