"""The model servers of a run, as its trainer sees them: attach, list, drain, drop (docs/adr/0012-inference-pool.md)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from pipeline.errors import InvalidRequest
from pipeline.inference_pool import InferencePool, PoolState, Server, ServerState, standing, wrong_address
from pipeline.inference_pool.records import ControlledBy
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from trainer_client.calls import Calls
from trainer_client.on_loop import OnLoop

REPEAT_WINDOW_S = 60.0
"""Servers that were attached this long ago can be attached again when Redis has lost its last writes."""


class Servers(OnLoop):
    """`Run.servers`."""

    def __init__(self, settings: QueueSettings, client: AsyncClient, calls: Calls, run: str) -> None:
        self._pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
        self._calls = calls
        self._run = run
        self._recent: deque[tuple[float, Sequence[Server], bool]] = deque()
        self.api_key = ""
        """Sent to every engine in weight updates; given with `attach`, kept nowhere else."""

    async def attach(
        self, urls: str | Sequence[str], *, model: str = "", control: ControlledBy = "ops", shared: bool = False, api_key: str = ""
    ) -> None:
        """Gives servers to the run; one that is there already, or drains, is up again. Idempotent.

        Args:
            urls: `http://host:port` or `unix:/path.sock`.
            model: name of the model there; empty = its only one.
            control: `trainer` for engines that share their accelerators with the trainer: no call begins before the run's first
                `weight_update`, since what they hold until then is nobody's policy. `ops` for servers that hold a policy from their start.
            shared: a frozen model that several runs may have: it gets no updates, and its version is not looked at.
            api_key: what engines want to hear in an update.

        Raises:
            ServerTaken: an address holds another run's policy; none was attached.
        """
        if api_key:
            self.api_key = api_key
        listed = _listed(urls)
        if not listed:
            raise InvalidRequest("expected at least one address, got none", field="urls")
        for url in listed:
            if why := wrong_address(url):
                raise InvalidRequest(why, field="urls")
        if control not in ("ops", "trainer"):
            raise InvalidRequest(f"expected ops or trainer, got {control!r}", field="control")
        servers = [Server(url.rstrip("/"), model, control=control, shared=shared) for url in listed]
        await self._attach(servers, after_update=control == "trainer" and not shared)
        self._recent.append((time.monotonic(), servers, control == "trainer" and not shared))
        while self._recent[0][0] < time.monotonic() - REPEAT_WINDOW_S:
            self._recent.popleft()

    async def repeat(self) -> None:
        """Attaches again what was attached in the last minute and is not there, in case Redis lost it. What is there stays as it is."""
        recent = [(servers, gated) for at, servers, gated in self._recent if at >= time.monotonic() - REPEAT_WINDOW_S]
        there = {server.url for server in await self.list()} if recent else set()
        for servers, gated in recent:
            lost = [server for server in servers if server.url not in there]
            if lost:
                await self._attach(lost, after_update=gated)

    async def _attach(self, servers: Sequence[Server], *, after_update: bool) -> None:
        await self._calls.make_if_open(self._pool.attach, self._run, servers, after_update=after_update)

    async def state(self) -> PoolState:
        """All that the pool knows of the run: its servers, what it allows, who paused it, what was re-routed and lost."""
        return await self._calls.make(self._pool.state, self._run)

    async def list(self) -> tuple[ServerState, ...]:
        """The servers, by address: whether each is up, which weights it holds, how busy it is."""
        return (await self.state()).servers

    async def why_not(self) -> dict[str, str]:
        """In a sentence each, what is wrong with the servers that get no new jobs; empty when all do."""
        state = await self.state()
        return {server.url: standing(server, state) for server in state.servers if not server.is_usable}

    async def drain(self, urls: str | Sequence[str]) -> tuple[str, ...]:
        """Lets servers keep the jobs that they have and gives them no new ones; `attach` takes that back. Returns those that it has."""
        return tuple(await self._calls.make(self._pool.drain, self._run, _listed(urls)))

    async def drop(self, urls: str | Sequence[str]) -> tuple[str, ...]:
        """Takes servers from the run: calls in flight end by themselves, their jobs go elsewhere. Returns those that it had."""
        gone = {url.rstrip("/") for url in _listed(urls)}
        left = [(at, [server for server in servers if server.url not in gone], gated) for at, servers, gated in self._recent]
        self._recent = deque(left)
        return tuple(await self._calls.make(self._pool.detach, self._run, _listed(urls)))

    async def clear(self) -> tuple[str, ...]:
        """Takes all servers from the run."""
        return await self.drop([server.url for server in await self.list()])


def _listed(urls: str | Sequence[str]) -> Sequence[str]:
    return [urls] if isinstance(urls, str) else urls
