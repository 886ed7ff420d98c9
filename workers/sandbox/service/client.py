"""The sandboxes of the node service as a `SandboxProvider`: what workers hold, and all they hold.

One connection for questions (control), and one for each attachment. The control connection also says whether the service lives: when it
ends (`lost`), every attachment has ended with it. The next service has another epoch, and is another `RemoteSandboxes`.

Who has started a sandbox will start another: one connection that has greeted and has no sandbox yet is kept for that (`SpareLink`). To
connect and to greet costs as much as a warm sandbox does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from pipeline import codec
from workers.sandbox.base import Probe
from workers.sandbox.errors import NodeUnavailable, SandboxError, SandboxGone
from workers.sandbox.service.link import Link, ServiceNotThere
from workers.sandbox.service.node import EndReport, OwnedSandbox
from workers.sandbox.service.remote import RemoteSandbox
from workers.sandbox.service.spare_link import SpareLink
from workers.sandbox.service.views import SandboxView
from workers.sandbox.spec import Isolation, SandboxHandle, SandboxOwner, SandboxSpec, Snapshot

log = structlog.get_logger(__name__)

SETTLE_S = 10.0


class RemoteSandboxes:
    """The node's sandboxes, held by its service.

    Args:
        run_dir: where the service has its socket.
        boot: the life of this process.
        fleet: whose jobs it works on (`Worker.fleet`).
    """

    def __init__(self, run_dir: Path, *, boot: str = "", fleet: str = "") -> None:
        self.run_dir = run_dir
        self._boot = boot
        self._fleet = fleet
        self._control: Link | None = None
        self._hello: dict[str, Any] = {}
        self._attached: set[RemoteSandbox] = set()
        self.spare = SpareLink(self._connect)

    @property
    def backend(self) -> str:
        return str(self._hello.get("backend", ""))

    @property
    def lost(self) -> asyncio.Future[str]:
        """Done when the service has ended, or we have left it: why."""
        assert self._control is not None, "enter it first"
        return self._control.lost

    @property
    def node(self) -> str:
        """Name of the node, as the service has it."""
        return str(self._hello.get("node", ""))

    @property
    def epoch(self) -> str:
        """The life of the service: handles of another one are void."""
        return str(self._hello.get("epoch", ""))

    @property
    def hello(self) -> dict[str, Any]:
        """What the service said of itself and of its backends."""
        return dict(self._hello)

    @property
    def degraded(self) -> str:
        """Why the node starts no sandboxes now; empty = it does."""
        return "" if self._control is None else self._control.degraded

    def on_degraded(self, told: Callable[[str], None]) -> None:
        """Has `told` called whenever that changes; one at a time."""
        assert self._control is not None, "enter it first"
        self._control.on_degraded = told

    @property
    def isolation(self) -> frozenset[Isolation]:
        """The classes that the node serves, by the service's own probe."""
        return frozenset(Isolation(word) for word in self._hello.get("isolation", ()) if word in set(Isolation))

    async def __aenter__(self) -> Self:
        """Connects.

        Raises:
            ServiceNotThere
        """
        link = await self._connect()
        self._control, self._hello = link, link.hello.result()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        problems = [
            problem
            for problem in await asyncio.gather(*(sandbox.kill() for sandbox in self._attached), return_exceptions=True)
            if problem is not None
        ]
        await self.spare.close()
        control = self._control
        if control is not None and not control.ended:
            try:
                async with asyncio.timeout(SETTLE_S):
                    await control.call("settle")
            except (TimeoutError, SandboxError) as error:
                log.warning("node_service_not_settled", error=str(error))
            control.close()
        if problems:
            raise problems[0]

    async def probe(self) -> Probe:
        return codec.from_map(Probe, await self._ask("probe"))

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> RemoteSandbox:
        link = await self._new_link()
        return await self._bound(link, "start", spec=spec, owner=owner)

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> RemoteSandbox:
        try:
            link = await self._new_link()
        except NodeUnavailable as error:
            raise SandboxGone(handle.sandbox_id, f"its node service does not answer: {error.why}") from error
        return await self._bound(link, "attach", held=handle.sandbox_id, handle=handle.to_map(), owner=owner)

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner) -> RemoteSandbox:
        try:
            link = await self._new_link()
        except NodeUnavailable as error:
            raise SandboxGone(snapshot.snapshot_id, f"its node service does not answer: {error.why}") from error
        return await self._bound(link, "restore", held=snapshot.snapshot_id, snapshot=snapshot.to_map(), owner=owner)

    async def drop(self, snapshot: Snapshot, owner: SandboxOwner) -> None:
        await self._ask("drop", snapshot=snapshot.to_map(), owner=owner)

    # -- for the node agent -----------------------------------------------------------------------------------------------------------

    async def owned(self) -> Sequence[OwnedSandbox]:
        """The sandboxes that workers of this fleet made here, attached or parked.

        Raises:
            NodeUnavailable
        """
        return [codec.from_map(OwnedSandbox, owned) for owned in await self._ask("owners")]

    async def views(self, prefix: str = "", *, with_processes: bool = False) -> Sequence[SandboxView]:
        """The node's sandboxes of all fleets, oldest first, as people are shown them."""
        return [codec.from_map(SandboxView, view) for view in await self._ask("views", prefix=prefix, processes=with_processes)]

    async def end(self, sandbox_ids: Sequence[str], why: str) -> EndReport:
        """Ends sandboxes whose jobs are over, whoever holds them."""
        return codec.from_map(EndReport, await self._ask("end", sandboxes=list(sandbox_ids), why=why))

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    async def _ask(self, op: str, **arguments: object) -> Any:
        if self._control is None:
            raise NodeUnavailable(self.backend, "not connected to the node service")
        return await self._control.call(op, **arguments)

    def _unavailable(self, why: str) -> Exception:
        return NodeUnavailable(self.backend, why)

    async def _connect(self) -> Link:
        return await Link.connect(self.run_dir, boot=self._boot, fleet=self._fleet, lost_error=self._unavailable)

    async def _new_link(self) -> Link:
        """For one sandbox."""
        try:
            return self.spare.take() or await self._connect()
        except ServiceNotThere as error:
            raise NodeUnavailable(self.backend, str(error)) from error

    async def _bound(self, link: Link, op: str, *, held: str = "", **arguments: object) -> RemoteSandbox:
        """A sandbox on a link.

        Args:
            held: what the service has, and takes along when it ends; a link that stood ready may not have heard of that end.
        """
        try:
            told = await link.call(op, **arguments)
        except BaseException as error:
            was_lost = link.lost.done()
            link.close()
            if held and was_lost and isinstance(error, NodeUnavailable):
                raise SandboxGone(held, f"its node service does not answer: {error.why}") from error
            raise
        sandbox = RemoteSandbox(link, SandboxHandle.from_map(told["handle"]), told["workdir"])
        self._attached.add(sandbox)
        link.lost.add_done_callback(lambda _: self._attached.discard(sandbox))
        self.spare.refill()
        return sandbox
