"""What was done to a sandbox for going over a bound, in words, and who has heard of it.

1. A notice is told before what it tells of is done (`ending.py`), so it is there when the command that it is about has ended: no result
   is without a notice that belongs to it.
2. Each notice comes with the next result that is made after it, and with that of every call that ran when it was told: which of two
   commands was meant is not known here, and neither may end without a reason.
3. The last `KEPT_NOTICES` are kept; of a call that is told of more, the earliest are missing.

Told by the watchdog's thread, taken by the event loop's.
"""

from __future__ import annotations

import threading
from collections import deque

from workers.sandbox.use import KEPT_NOTICES


class Notices:
    """Those of one attachment, in order."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=KEPT_NOTICES)
        self._told = self._taken = 0
        self._lock = threading.Lock()

    @property
    def told(self) -> int:
        """How many there have been: what a call that begins now gives to `take`."""
        return self._told

    def tell(self, notice: str) -> None:
        with self._lock:
            self._kept.append(notice)
            self._told += 1

    def take(self, since: int) -> tuple[str, ...]:
        """For a result: what nobody was told yet, and what came after the first `since`."""
        with self._lock:
            new = self._told - min(self._taken, since)
            self._taken = self._told
            return tuple(self._kept)[-new:] if new else ()

    def all(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._kept)
