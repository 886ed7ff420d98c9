"""Cases of the DAPO supervisor: events of groups and members, played on a run with the real client, supervisor, server and scripts.

A case has a server's namespace of its own. Its groups are prompts of the reserve; its events are what workers and trainer do, in order.
Before the next event all that the supervisor has to do is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from pipeline.testing.servers import PrivateServer, found_servers
from tests.cases.areas.dapo_outcome import differences
from tests.cases.areas.dapo_story import play
from tests.cases.case import Case, Check, Difference


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """The server starts with the first case."""
    with ExitStack() as stack:
        servers: list[PrivateServer] = []

        async def check(case: Case) -> list[Difference]:
            if not servers:
                servers.append(await asyncio.to_thread(lambda: stack.enter_context(PrivateServer(found_servers()[0]))))
            return differences(case.expect, await play(case, servers[0].url))

        yield check
