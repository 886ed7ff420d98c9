"""The embedded server of this machine, for clients that were told of no other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from pipeline.settings import QueueSettings


async def with_server(settings: QueueSettings, stack: AsyncExitStack) -> QueueSettings:
    """The settings with a server in them: the one they name, else the embedded one of this machine, held until the stack unwinds."""
    if settings.redis_url:
        return settings
    from pipeline.embedded import open_redis  # only when there is none to connect to: it brings the keeper with it

    server = open_redis()
    address = await asyncio.to_thread(server.__enter__)
    stack.push_async_callback(asyncio.to_thread, server.__exit__, None, None, None)
    return settings.model_copy(update={"redis_url": address.url_with_password()})
