"""INIT: the handler makes the environment; its handle goes to the next stage, in the lane of this node when only this node has it.

A job whose sandbox is made from an image may go to INIT of another node instead, which has that image or is to have it (ADR 18, "Placing").
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from pipeline import codec
from pipeline.attempts import End, HandedOff, JobControl
from pipeline.errors import LeaseLost
from pipeline.messages import JobSpec, Stage
from pipeline.scripts import Scripts
from workers.handlers.base import StageContext, TaskHandler
from workers.handlers.registry import Handlers
from workers.sandbox.base import SandboxProvider
from workers.stages.bodies import Bodies
from workers.stages.sandbox_record import used_by, written
from workers.stages.stage import PROGRESS_MARGIN_S, Place, StageWork

log = structlog.get_logger(__name__)


class InitWork(StageWork):
    """Makes environments.

    Args:
        scripts: of the shard.
    """

    stage = Stage.INIT

    def __init__(self, scripts: Scripts, *, bodies: Bodies, handlers: Handlers, sandboxes: SandboxProvider | None, place: Place) -> None:
        super().__init__(bodies=bodies, handlers=handlers, sandboxes=sandboxes, place=place)
        self._scripts = scripts

    async def work(self, control: JobControl, handler: TaskHandler, context: StageContext) -> End:
        limit_s = context.spec.template.limits.init_active_s
        control.progress(limit_s + PROGRESS_MARGIN_S)
        control.gate()
        handler.check_options(context.spec.template.options)
        await self._stay(control, handler, context.spec)
        async with asyncio.timeout(limit_s):
            environment = await handler.init(context)
        if used := written(None, await used_by(context)):
            environment = replace(environment, used=used)
        body = codec.encode(environment)
        if environment.is_local:
            return HandedOff(body, self.place.node, self.place.epoch)
        return HandedOff(body)

    async def _stay(self, control: JobControl, handler: TaskHandler, spec: JobSpec) -> None:
        """Returns when the environment is to be made here.

        Raises:
            LeaseLost: the job is another node's by now.
        """
        if self.sandboxes is None or spec.template.capability == "none":
            return
        wanted = handler.sandbox_spec(spec)
        if wanted is None or not wanted.image:
            return
        to = await self._scripts.place_by_image(control.held, self.place.node, wanted.image)
        if to != "here":
            log.debug("job_placed", job_id=spec.job, image=wanted.image, to=to)
            control.lease_lost = True
            raise LeaseLost(control.held.job, control.held.attempt)
