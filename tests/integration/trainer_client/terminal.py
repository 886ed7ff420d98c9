"""What was written to a terminal."""

from __future__ import annotations

import asyncio
import io


class Terminal(io.StringIO):
    """Stands for one."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.wrote.set()
        return super().write(text)
