"""Who may start a sandbox now: so many at once on the node, fewer of one image, the others in a line.

A start is mostly CPU and page cache: two cores that build 64 walls at once build none of them within a minute.

1. At most `starts` places are taken at once, at most `per_image` of them for one image. The node's own programs (no image) are bounded by
   the first alone.
2. Places are given in the order of coming. Who cannot have one because its image has none left lets others pass, and is the first to
   be asked again.
3. Starts that nobody waits for (`spare`) get a place only while nobody else stands in the line.
4. Who is cancelled leaves the line, or gives back the place that was given to it at that moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Waiter:
    image: str
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class StartGates:
    """The places of one node.

    Args:
        starts: at once on the node.
        per_image: at once of one image.
    """

    def __init__(self, *, starts: int, per_image: int) -> None:
        if starts < 1 or per_image < 1:
            raise ValueError(f"starts is {starts} and per_image {per_image}, expected at least 1 each")
        self.starts = starts
        self.per_image = per_image
        self.running = 0
        """Places that are taken."""
        self._of_image: Counter[str] = Counter()
        self._line: dict[_Waiter, None] = {}
        self._spare_line: dict[_Waiter, None] = {}

    @property
    def waiting(self) -> int:
        """How many stand in the line, spare ones not counted."""
        return len(self._line)

    async def enter(self, image: str, *, spare: bool = False) -> None:
        """Returns with a place, which `leave` gives back."""
        line = self._spare_line if spare else self._line
        waiter = _Waiter(image)
        line[waiter] = None
        self._admit()
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in line:
                del line[waiter]
                self._admit()  # a spare one may have waited for us
            else:
                self.leave(image)
            raise

    def leave(self, image: str) -> None:
        """Gives a place back."""
        self.running -= 1
        self._of_image[image] -= 1
        if not self._of_image[image]:
            del self._of_image[image]
        self._admit()

    def _admit(self) -> None:
        for line in (self._line, self._spare_line):
            for waiter in list(line):
                if self.running >= self.starts:
                    return
                is_cancelled = waiter.turn.done()  # and has not run since: it leaves the line itself
                if is_cancelled or (waiter.image and self._of_image[waiter.image] >= self.per_image):
                    continue
                del line[waiter]
                self.running += 1
                self._of_image[waiter.image] += 1
                waiter.turn.set_result(None)
            if self._line:
                return
