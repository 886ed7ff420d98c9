"""One look at the pipeline that the settings name, and the verdict on it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from ops.status.reach import PATIENCE_S, reached, settings_of_server, while_it_answers
from ops.status.trouble import Unreached
from ops.status.verdict import Judgement, unreached
from pipeline.redis_address import SetUp, parse_redis_url
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings

if TYPE_CHECKING:
    from ops.status.facts import Facts


async def look_and_judge(settings: QueueSettings, *, patience_s: float = PATIENCE_S) -> tuple[Judgement, Facts | None]:
    """The verdict, and what it comes from; no facts where Redis gives no answer. Never raises for what Redis does.

    Args:
        patience_s: what a name, a connection and a reply each may take.
    """
    try:
        found = settings_of_server(settings)
        async with reached(found, patience_s=patience_s) as client:
            # half of the program, which is not waited for by who hears that Redis is gone
            from ops.status.facts import read_facts
            from ops.status.judging import judge

            facts = await while_it_answers(client, lambda: read_facts(client, found), found, patience_s=patience_s)
    except Unreached as error:
        return unreached(await explained(error, settings)), None
    return judge(facts), facts


async def explained(error: Unreached, settings: QueueSettings) -> Unreached:
    """The same with what Sentinels, or the other nodes of a Cluster, know of it."""
    if error.trouble.cause != "redis_unreachable" or not settings.redis_url or parse_redis_url(settings.redis_url).set_up is SetUp.SINGLE:
        return error
    from ops.status.set_up import read_set_up
    from ops.status.set_up_troubles import of_set_up

    async with aclosing(command_client(settings)) as client:
        found = [trouble for trouble in of_set_up(await read_set_up(client, settings)) if trouble.is_blocking]
    return Unreached(min(found, key=lambda trouble: trouble.order)) if found else error
