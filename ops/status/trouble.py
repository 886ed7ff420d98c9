"""What stands in the way of a pipeline, and what goes on from there."""

from __future__ import annotations

from dataclasses import dataclass

ORDER = (
    "redis_unreachable",
    "wrong_password",
    "master_down",
    "slots_unserved",
    "replica_lost",
    "sentinel_lost",
    "redis_disk_full",
    "redis_memory_full",
    "acl_too_narrow",
    "fleet_gone",
    "no_worker",
    "no_capability",
    "servers_paused",
    "no_server",
    "server_down",
    "server_unsynced",
    "lane_orphaned",
    "node_degraded",
    "node_failed",
    "node_lost",
    "image_missing",
    "poison_job",
    "dead_letters",
    "groups_broken",
    "no_supervisor",
    "policy_unknown",
    "reserve_empty",
    "run_paused",
    "results_unread",
    "groups_too_old",
    "clock_skew",
)
"""Causes that explain others stand before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One cause, as it was seen."""

    cause: str
    """Of `ORDER`."""
    what: str
    """A sentence, without a full stop."""
    next: tuple[str, ...]
    """A command of `rollstream`, in words: what goes on from here."""
    run: str = ""
    """Whose it is; empty = of the whole pipeline."""
    is_blocking: bool = False
    """Nothing that it holds for gets on."""

    @property
    def order(self) -> tuple[bool, int, str]:
        """By which troubles are sorted: what blocks first, then what explains others."""
        return not self.is_blocking, ORDER.index(self.cause), self.run


class Unreached(Exception):
    """Redis gives no answer, or not to this user: nothing is known."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.what)
        self.trouble = trouble
