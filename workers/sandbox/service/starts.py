"""Every way a sandbox comes up on a node: behind the gates, within a limit, again when the reason passes.

    in time:   in the line -> a place -> walls and their first answer -> the place goes back
                     ^                         └─ failed, and it may pass: a short pause
                     └───────────────────────────────┘   at most `RETRIES` times

1. A place is held until the sandbox has answered or nothing is left of the try: also when its caller is cancelled meanwhile.
2. Who gets no answer within the limit, waiting in the line included, is told so by a `SandboxStartError` that may be tried again.
3. Each try is counted by `NodeHealth`; one that failed for what was asked for is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import structlog

from workers.sandbox.errors import ImageError, NodeUnavailable, SandboxStartError
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.sandbox import LocalSandbox
from workers.sandbox.service.gates import StartGates
from workers.sandbox.service.health import NodeHealth
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec, Snapshot

log = structlog.get_logger(__name__)

RETRIES = 2
PAUSE_S = 0.2
"""Before the first retry, on average; twice that before the second."""

Make = Callable[[], Awaitable[LocalSandbox]]


class Starts:
    """Makes and takes over the sandboxes of one node.

    Args:
        limit_s: longest from asking to the first answer.
        check: raises when the node starts nothing now; called before each try.
    """

    def __init__(
        self, provider: LocalSandboxes, gates: StartGates, health: NodeHealth, *, limit_s: float, check: Callable[[], None], random: Random
    ) -> None:
        self._provider = provider
        self._gates = gates
        self._health = health
        self._limit_s = limit_s
        self._check = check
        self._random = random
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self, spec: SandboxSpec, owner: SandboxOwner, *, spare: bool = False) -> LocalSandbox:
        """Makes a sandbox; `spare`: nobody waits for it.

        Raises:
            what `check` and `SandboxProvider.start` raise.
        """
        return await self._make(spec.image, lambda: self._provider.start(spec, owner), spare=spare)

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> LocalSandbox:
        """Takes over a parked sandbox: its walls are built anew.

        Raises:
            what `SandboxProvider.attach` raises.
        """
        return await self._make("", lambda: self._provider.attach(handle, owner), spare=False, checked=False)

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner) -> LocalSandbox:
        """Makes a sandbox that begins from a snapshot.

        Raises:
            what `check` and `SandboxProvider.restore` raise.
        """
        return await self._make("", lambda: self._provider.restore(snapshot, owner), spare=False)

    async def settle(self) -> None:
        """Until no place is held by a start whose caller is gone by now."""
        await asyncio.gather(*self._leaving)

    async def _make(self, image: str, make: Make, *, spare: bool, checked: bool = True) -> LocalSandbox:
        tried = 0
        try:
            async with asyncio.timeout(self._limit_s):
                while True:
                    try:
                        return await self._try(image, make, spare=spare, checked=checked)
                    except (SandboxStartError, ImageError) as error:
                        if not error.retryable or isinstance(error, NodeUnavailable) or tried >= RETRIES:
                            raise
                        tried += 1
                        log.warning("start_tried_again", image=image, failed=tried, error=str(error))
                    await asyncio.sleep(PAUSE_S * 2 ** (tried - 1) * self._random.uniform(0.5, 1.5))
        except TimeoutError:
            why = f"no answer within {self._limit_s:g} s; {self._gates.running} starts run, {self._gates.waiting} wait"
            raise SandboxStartError(self._provider.backend, why) from None

    async def _try(self, image: str, make: Make, *, spare: bool, checked: bool) -> LocalSandbox:
        await self._gates.enter(image, spare=spare)
        try:
            if checked:
                self._check()
            sandbox = await make()
        except asyncio.CancelledError:
            leaving = asyncio.get_running_loop().create_task(self._leave_when_undone(image), name="leave the gates")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            raise
        except BaseException as error:
            self._gates.leave(image)
            if isinstance(error, SandboxStartError) and error.retryable and not isinstance(error, NodeUnavailable):
                self._health.start_failed(str(error))
            raise
        self._gates.leave(image)
        self._health.started()
        return sandbox

    async def _leave_when_undone(self, image: str) -> None:
        await self._provider.settle()
        self._gates.leave(image)
