"""Looking: health, numbers, events, and what the routes are."""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from aiohttp import web

from ops.gateway.answers import json_answer
from ops.gateway.events import FROM_THE_START, PAUSE_S, as_event, kinds_of, position_of
from ops.gateway.state import Gateway
from pipeline.errors import BrokerUnreachable, RollstreamError
from trainer_client import RunStatistics

log = structlog.get_logger(__name__)

HEARTBEAT_S = 15.0
"""A comment as often keeps proxies from closing a stream, and finds readers that are gone."""


class WatchRoutes:
    """What changes nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, _: web.Request) -> web.Response:
        """Whether it takes work."""
        ok = not self._gateway.draining.is_set()
        return json_answer({"ok": ok, "state": "serving" if ok else "draining"}, status=200 if ok else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """Numbers for Prometheus."""
        gateway = self._gateway
        now = {
            "results_kept": len(gateway.work.kept),
            "results_let_go": gateway.work.let_go_count,
            "jobs_open": len(gateway.work.open),
            "jobs_submitted": gateway.work.submitted,
            "process_calls_waiting": sum(gateway.door.jobs.values()),
            "event_readers": gateway.events.readers,
            "body_bytes_free": gateway.budget.free_bytes,
            "answer_bytes_unsent": gateway.large.unsent_bytes,
            "is_started": float(gateway.door.is_open),
            "is_draining": float(gateway.draining.is_set()),
        }
        text, kind = gateway.metrics.render({**now, **gateway.connections_now()}, await self._statistics())
        return web.Response(body=text, headers={"Content-Type": kind})

    async def _statistics(self) -> RunStatistics | None:
        try:
            async with asyncio.timeout(2.0):
                return await self._gateway.run.statistics()
        except (RollstreamError, TimeoutError):
            return None

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Jobs, groups and steps as they end. `Last-Event-ID` (or `from`) resumes; without it the stream begins now."""
        events = self._gateway.events
        kinds = kinds_of(request.query.get("kinds", ""))
        said = request.headers.get("Last-Event-ID") or request.query.get("from")
        async with events.reading():
            position = position_of(said) if said else await events.newest()
            response = web.StreamResponse(
                headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            )
            await response.prepare(request)
            try:
                await self._stream(response, position, kinds)
            except TimeoutError:  # it does not read: its position is in what it has read
                _cut_off(request)
            except RollstreamError as error:  # the answer has begun, so another one would be read as part of it
                log.error("events_broken_off", error=str(error))
                _cut_off(request)
            return response

    async def _stream(self, response: web.StreamResponse, position: str, kinds: tuple[str, ...]) -> None:
        gateway, events = self._gateway, self._gateway.events
        await self._write(response, b": from %s\n\n" % (position or FROM_THE_START).encode())
        while not gateway.draining.is_set():
            arrived = events.arrival()
            try:
                entries = await events.after(position)
            except BrokerUnreachable:
                await self._write(response, b": Redis does not answer\n\n")
                await self._pause()
                continue
            for entry, fields in entries:
                position = entry
                event = as_event(entry, fields, kinds)
                if event is not None:
                    await self._write(response, event)
            if not entries and not await self._woken(arrived):
                await self._write(response, b": still here\n\n")
        await self._write(response, b": the gateway is ending; come again with Last-Event-ID\n\n")

    async def _woken(self, arrived: asyncio.Event) -> bool:
        """Waits for news, or for the end; False when there were none for a while."""
        waits = [asyncio.create_task(event.wait(), name="events") for event in (arrived, self._gateway.draining)]
        try:
            done, _ = await asyncio.wait(waits, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return bool(done)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_S):
                await self._gateway.draining.wait()

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._gateway.settings.write_s):
            await response.write(data)


def _cut_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


__all__ = ["HEARTBEAT_S", "WatchRoutes"]
