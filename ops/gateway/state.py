"""What the routes of a gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from ops.gateway.answers import LargeAnswers
from ops.gateway.bodies import BodyBudget
from ops.gateway.connections import Connections
from ops.gateway.door import Door
from ops.gateway.events import Events
from ops.gateway.memory import Memory
from ops.gateway.metrics import Metrics
from ops.gateway.original_request import OriginalRequests
from ops.gateway.refusals import Refusal
from ops.gateway.settings import GatewaySettings
from ops.gateway.steps import Steps
from ops.gateway.tools import TaskTools
from ops.gateway.work import Work
from pipeline.errors import RollstreamError
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from trainer_client import Run

log = structlog.get_logger(__name__)

RETRY_S = 5.0
LATER_S = 15.0
"""For what is done beside the calls: no end of the gateway waits longer for it."""
DELIVERS = web.RequestKey("delivers", str)
"""Full id of the job whose result an answer holds: noted when the answer is out."""


@dataclass(slots=True, kw_only=True)
class Gateway:
    """One gateway and the run that it holds."""

    settings: GatewaySettings
    queue: QueueSettings
    run: Run
    client: AsyncClient
    keys: Keys
    work: Work
    memory: Memory
    door: Door
    steps: Steps
    events: Events
    budget: BodyBudget
    large: LargeAnswers
    tools: TaskTools
    originals: OriginalRequests
    metrics: Metrics
    tasks: asyncio.TaskGroup
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first SIGTERM: no job is accepted any more."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the grace is over: whoever waits is told where to find the result."""
    connections: Connections | None = None
    """None before it listens."""
    farewell: Refusal | None = None
    """Why it leaves, when that is not a person's wish."""

    def connections_now(self) -> dict[str, float]:
        """Numbers of its connections."""
        found = self.connections
        return (
            {}
            if found is None
            else {
                "connections": len(found.open),
                "connections_refused": found.refused,
                "connections_slow": found.slow,
                "connections_gave_way": found.gave_way,
            }
        )

    def check_accepts(self) -> None:
        """Refuses work from SIGTERM on.

        Raises:
            Refusal: 503.
        """
        if self.draining.is_set():
            raise self.goodbye()

    def goodbye(self, job: str = "", why: Refusal | None = None) -> Refusal:
        """What a call is told that cannot be answered any more.

        Args:
            job: full id of the job that it waits for.
            why: what ended the wait; default: why the gateway leaves.
        """
        why = why or self.farewell or Refusal(503, "draining", "the gateway is ending and takes no jobs")
        if not job:
            return Refusal(503, why.error, f"{why.detail}: send it again to its next process", retry_after_s=RETRY_S)
        name = self.work.client_id(job)
        where = f"job {name!r} goes on: send the same request under this id again, or fetch /jobs/{name}, at its next process"
        more: dict[str, object] = {"job_id": name, "result": f"/jobs/{name}"}
        return Refusal(503, why.error, f"{why.detail}; {where}", retry_after_s=RETRY_S, more=more)

    def later(self, what: str, work: Awaitable[object]) -> None:
        """Does something beside the calls; what goes wrong with it is in the log."""
        self.tasks.create_task(_logged(what, work), name=what)


async def _logged(what: str, work: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(LATER_S):
            await work
    except (RollstreamError, TimeoutError) as error:
        log.warning("not_done", what=what, error=str(error) or f"not within {LATER_S:g} s")


__all__ = ["DELIVERS", "Gateway"]
