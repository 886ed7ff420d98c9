"""Takes entries from owners that are gone, or that have no room for them: one bad job among them hurts itself only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import redis
import structlog

from pipeline.errors import BrokerError, BrokerUnreachable
from pipeline.messages import Stage
from pipeline.scripts.calls import Scripts
from pipeline.settings import QueueSettings

log = structlog.get_logger(__name__)

Entry = tuple[str, str, str, float]
"""Stream without tag, entry id, job ('' = the entry names none), jitter 0 to 1."""


async def put_back(
    scripts: Scripts,
    settings: QueueSettings,
    mode: Literal["idle", "restart"],
    stage: Stage,
    entries: Sequence[Entry],
    *,
    lease_ms: int,
    consumer: str,
    boot: str,
) -> list[str]:
    """What the script `recover` says of each entry, or `rejected`: a job that no script can put back (a key of it, or of its group, is of
    another type) is a dead letter, since it would keep all that come after it from being looked at, in every round of every janitor.

    Raises:
        BrokerUnreachable
    """
    try:
        return await scripts.recover(
            mode,
            entries,
            lease_ms=lease_ms,
            consumer=consumer,
            boot=boot,
            backoff_ms=int(settings.retry_backoff_s * 1000),
            backoff_max_ms=int(settings.retry_backoff_max_s * 1000),
        )
    except BrokerUnreachable:
        raise
    except (BrokerError, redis.ResponseError) as error:
        if len(entries) > 1:
            return [
                word
                for entry in entries
                for word in await put_back(scripts, settings, mode, stage, [entry], lease_ms=lease_ms, consumer=consumer, boot=boot)
            ]
        stream, entry_id, job, _ = entries[0]
        log.error("job_unusable", job_id=job, stream=stream, error=str(error))
        await scripts.reject(stream, stage, entry_id, f"job {job}: {error}", job.encode())
        return ["rejected"]
