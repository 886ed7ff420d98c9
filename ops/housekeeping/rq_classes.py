"""RQ's worker and job, held to what housekeeping may do. Imported only after `HousekeepingQueue.import_rq`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rq.job import Job
from rq.worker import Worker

from ops.housekeeping.queue import FUNCTIONS

REFUSES = "ops.housekeeping.rq_classes.refuse"
IMPORTED_BY_RQ = frozenset(
    ("success_callback_name", "failure_callback_name", "stopped_callback_name", "webhooks", "dependency_ids", "dependency_id")
)
"""Fields of a job's hash that would have RQ import what they name, or call it. None is ever written by us."""


class OurJob(Job):
    """A job as read from Redis: who can write there could name any function."""

    def restore(self, raw_data: Mapping[bytes | str, Any]) -> Any:
        """As RQ, without what it would import; a function that is none of ours becomes one that refuses."""
        kept = {name: value for name, value in raw_data.items() if _text(name) not in IMPORTED_BY_RQ}
        found = super().restore(kept)
        if not self._is_ours():
            self.func_name, self.instance, self.args, self.kwargs = REFUSES, None, (), {}
        return found

    def _is_ours(self) -> bool:
        try:
            return self.func_name in FUNCTIONS and self.instance is None and isinstance(self.kwargs, dict)
        except Exception:  # noqa: BLE001 -- whatever the bytes were, they are not ours
            return False


class OurWorker(Worker):
    """Runs `OurJob`."""

    job_class = OurJob


def refuse() -> None:
    """What stands in for a function that is none of ours.

    Raises:
        PermissionError
    """
    raise PermissionError("this worker runs no function but those of housekeeping and of rollstream image")


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


__all__ = ["OurJob", "OurWorker", "refuse"]
