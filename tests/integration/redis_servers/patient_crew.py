"""A crew whose looks at the queue go through an outage, as those of its members do."""

from __future__ import annotations

from pipeline.errors import BrokerUnreachable
from pipeline.keys import Keys, shard_of
from pipeline.redis_client import ask
from pipeline.testing import QueueAudit, wait_until
from tests.integration.pipeline.crew import Crew

PATIENCE_S = 50.0


class PatientCrew(Crew):
    """See the module."""

    async def accept_again(self) -> None:
        """Sends all units again, as a trainer does after an outage with those that it has seen no end of."""
        units, self.units = self.units, []
        await self.accept(*units)

    async def results(self, count: int = 0, *, run: str = "run1", timeout_s: float = PATIENCE_S) -> list[dict[str, str]]:
        """Terminal records, once there are so many."""
        keys = Keys.of_shard(self.settings.namespace, shard_of(run, self.settings.shards))

        async def enough() -> bool:
            try:
                return int(await ask(self.client, "XLEN", keys.results(run))) >= count
            except BrokerUnreachable:
                return False

        await wait_until(enough, f"{count} results of {run}", timeout_s=timeout_s)
        return await QueueAudit(self.client, keys).results(run)
