"""The client's log.

structlog is imported with the first event and not before: it brings a renderer for terminals with it, a fifth of the time that importing
this package takes.
"""

from __future__ import annotations

from typing import Any


class Log:
    """Passes events on to structlog."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:  # Any: the bound methods of structlog's loggers
        import structlog

        return getattr(structlog.get_logger(self._name), level)
