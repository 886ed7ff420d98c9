"""INIT: the handler makes the environment; its handle goes to the next stage, in the lane of this node when only this node has it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pipeline import codec
from pipeline.attempts import End, HandedOff, JobControl
from pipeline.messages import Stage
from workers.handlers.base import StageContext, TaskHandler
from workers.stages.sandbox_record import used_by, written
from workers.stages.stage import PROGRESS_MARGIN_S, StageWork


class InitWork(StageWork):
    """Makes environments."""

    stage = Stage.INIT

    async def work(self, control: JobControl, handler: TaskHandler, context: StageContext) -> End:
        limit_s = context.spec.template.limits.init_active_s
        control.progress(limit_s + PROGRESS_MARGIN_S)
        control.gate()
        handler.check_options(context.spec.template.options)
        async with asyncio.timeout(limit_s):
            environment = await handler.init(context)
        if used := written(None, await used_by(context)):
            environment = replace(environment, used=used)
        body = codec.encode(environment)
        if environment.is_local:
            return HandedOff(body, self.place.node, self.place.epoch)
        return HandedOff(body)
