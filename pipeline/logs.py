"""Logs as events: a fixed phrase and fields, one JSON object a line, or readable lines on a terminal.

What identifies a process is bound once (`worker`); a field whose name says that it is secret is never written. A line that cannot be
written (the reader is gone, the disk is full) is dropped: a log never stops what it tells of.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import MutableMapping
from typing import TextIO, cast

import orjson
import structlog

SECRET_NAMES = ("password", "secret", "token", "api_key", "credential", "authorization")
SECRETS_KEPT = frozenset(("tokens", "sampled_tokens", "total_tokens", "tokens_kept", "token_count"))
URL_PASSWORD = re.compile(r"(\w+://[^/@\s:]*:)[^/@\s]+@")
"""The password in a URL of any scheme."""


def redact(_: object, __: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Hides what is secret, by the name of the field and by the look of a URL."""
    for name, value in event.items():
        if name not in SECRETS_KEPT and any(word in name.lower() for word in SECRET_NAMES):
            event[name] = "***"
        elif isinstance(value, str) and "://" in value:
            event[name] = redact_text(value)
    return event


def redact_text(text: str) -> str:
    """A text without the passwords of the URLs in it."""
    return URL_PASSWORD.sub(r"\1***@", text)


class PatientStream:
    """A stream that takes what it can; lines that it cannot take are lost, and nobody learns of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, or does not. Answers the length either way."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed, or not to be encoded
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes, or does not."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure_logs(*, as_json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Sets up the logs of this process; call it once, in `main`."""
    out = stream or sys.stderr
    last: structlog.typing.Processor
    if as_json:
        last = structlog.processors.JSONRenderer(serializer=_dumps)
    else:
        last = structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=24)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, PatientStream(out))),
        cache_logger_on_first_use=True,
    )


def _dumps(event: object, default: object = None) -> str:
    return orjson.dumps(event, default=str).decode()
