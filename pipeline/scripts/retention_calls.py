"""One typed function for each script that removes what nobody needs any more. All may be repeated; each looks again at what it removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.replies import text, whole
from pipeline.scripts.runner import ScriptRunner

KEYS_A_CALL = 128
"""Keys that one call judges: a millisecond of the server."""
ENTRIES_A_CALL = 1000
"""Entries that one call trims."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A run that was let go of, or would be."""

    run: str
    records: int
    """That nobody had acked."""
    closed_s: float
    """Since it was closed."""


class RetentionScripts:
    """These scripts on one shard.

    Args:
        dry_run: nothing is removed; every answer is what would be.
    """

    def __init__(self, client: AsyncClient, keys: Keys, *, dry_run: bool = False) -> None:
        self.run_script = ScriptRunner(client, keys)
        self._dry = int(dry_run)

    async def drop_unowned(self, keys: Sequence[str]) -> tuple[int, int]:
        """Removes those of some keys (without tag, at most `KEYS_A_CALL`) that nobody can reach; returns how many, and bytes of bodies."""
        reply = await self.run_script("drop_unowned", self._dry, *keys)
        return whole(reply[0]), whole(reply[1])

    async def trim_stream(self, stream: str, *, older_ms: int, most: int = ENTRIES_A_CALL) -> tuple[int, bool]:
        """Trims a stream that tells (`s:reward`, `s:cancel`, `s:dead`); returns how many entries went, and whether there may be more."""
        reply = await self.run_script("trim_stream", self._dry, stream, older_ms, most)
        return whole(reply[0]), whole(reply[1]) == 1

    async def forget_run(self, run: str, *, closed_ms: int) -> Forgotten | None:
        """Lets go of a run that was closed so long ago because its trainer was gone; None = it stays."""
        while True:
            reply = await self.run_script("forget_run", self._dry, run, closed_ms)
            match text(reply[0]):
                case "more":
                    continue
                case "forgotten":
                    return Forgotten(run, whole(reply[1]), whole(reply[2]) / 1000)
                case _:
                    return None


__all__ = ["ENTRIES_A_CALL", "KEYS_A_CALL", "Forgotten", "RetentionScripts"]
