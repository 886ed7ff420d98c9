"""What a grader keeps beside its grade: gathered here, and sent with the grade by the script that ends the attempt.

Until then it is this worker's memory alone: an attempt that fails, dies or is cancelled leaves nothing behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.errors import BodyTooLarge, InvalidRequest

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
MOST = 16
"""By-products of one job: a log, a patch, a report; who has more has one archive."""


class Byproducts:
    """Those of one judging.

    Args:
        max_bytes: of all together, as they are kept; who has more to keep compresses it.
    """

    def __init__(self, job: str, max_bytes: int) -> None:
        self._job = job
        self._max_bytes = max_bytes
        self._kept: dict[str, bytes] = {}

    @property
    def kept(self) -> Mapping[str, bytes]:
        """Name to content."""
        return self._kept

    async def attach(self, name: str, content: bytes) -> None:
        """Keeps one; of two of one name the last.

        Raises:
            InvalidRequest: the name does not fit, it is no bytes, or there are too many.
            BodyTooLarge: it does not fit beside the others; nothing has changed.
        """
        if not NAME.match(name):
            raise InvalidRequest(f"expected a lower-case letter, then up to 31 of a-z, 0-9 and _, got {name!r:.80}", field="attach")
        if not isinstance(content, bytes):
            raise InvalidRequest(f"expected bytes, got {type(content).__name__}", field=f"attach.{name}")
        others = {other: its for other, its in self._kept.items() if other != name}
        if len(others) >= MOST:
            raise InvalidRequest(f"expected at most {MOST} by-products, {name!r} is one more", field="attach")
        size = len(content) + sum(map(len, others.values()))
        if size > self._max_bytes:
            beside = f" beside {', '.join(others)}" if others else ""
            raise BodyTooLarge(f"by-product {name!r} of job {self._job}{beside}", size, self._max_bytes)
        self._kept = {**others, name: content}
