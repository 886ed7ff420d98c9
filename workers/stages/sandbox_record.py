"""What the record of a job says of its sandboxes: `SandboxUse` as a map, over all stages so far, of the attempts that were kept.

    INIT   `Environment.used`
    RUN    `Trajectory.extra["sandbox"]`: INIT's and its own
    EVAL   `Grade.details["sandbox"]`: all, when it had a sandbox of its own

So the last body that has one says it all. Of an attempt that failed there is no body: the reason that is kept of it ends with the last
notice. A record is not worth a job: who cannot be asked, or says what is none, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from workers.handlers.base import StageContext
from workers.sandbox.use import SandboxUse, joined
from workers.stages.held_sandboxes import HeldSandboxes

log = structlog.get_logger(__name__)

SANDBOX = "sandbox"
"""Where it stands in `extra` and `details`."""


async def used_by(context: StageContext) -> SandboxUse | None:
    """What the sandboxes of this attempt have used; None when it had none."""
    held = context.sandboxes
    return await held.used() if isinstance(held, HeldSandboxes) else None


def written(before: object, now: SandboxUse | None) -> dict[str, object]:
    """The record after one more stage; empty when nothing is known.

    Args:
        before: what the stage before has written.
    """
    earlier = _read(before)
    known = [use for use in (earlier, now) if use is not None]
    return (known[0] if len(known) == 1 else joined(*known)).to_map() if known else {}


def _read(record: object) -> SandboxUse | None:
    if not isinstance(record, Mapping) or not record:
        return None
    try:
        return SandboxUse.from_map(record)
    except ValueError as error:
        log.warning("sandbox_record_not_readable", error=str(error))
        return None
