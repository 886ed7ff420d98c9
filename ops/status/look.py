"""One look at the pipeline that the settings name, and the verdict on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.status.reach import PATIENCE_S, reached, settings_of_server, while_it_answers
from ops.status.trouble import Unreached
from ops.status.verdict import Judgement, unreached
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
        return unreached(error), None
    return judge(facts), facts
