"""Logs as events: a fixed phrase and fields, one JSON object a line, or readable lines on a terminal.

A process of a node appends to the log of its node (`NODE_LOG`), any other writes to its standard error, and a launcher does both. A field
whose name says that it is secret is never written, nor is the password of an address. A line that cannot be written (the reader is gone,
the disk is full) is dropped, counted and told of when lines can be written again: a log never stops what it tells of.

The protocol of a node's log is in docs/adr/0033-logs-and-secrets.md.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import logging.handlers
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TextIO, cast

import orjson
import structlog

from pipeline.log_file import SharedLogFile
from pipeline.log_repeats import Repeats

NODE_LOG = "ROLLSTREAM_NODE_LOG"
"""Set by a launcher for its children: the log of the node (`NodeLog`)."""
PROCESS_NAME = "ROLLSTREAM_PROCESS"
"""Set by a process for its children: what it calls them."""
FIRST_FIELDS = ("timestamp", "level", "node", "process", "pid", "event")
"""Of a line of JSON, in this order."""
LINE_START = b'{"timestamp":"'
"""How each begins. Inside of a text its quotes would be escaped."""
SECRET_NAMES = ("password", "secret", "token", "api_key", "credential", "authorization")
SECRETS_KEPT = frozenset(("tokens", "sampled_tokens", "total_tokens", "tokens_kept", "token_count"))
URL_PASSWORD = re.compile(r"(\w+://[^/@\s:]*:)[^/\s]+@")
"""The password in a URL of any scheme, to the last @."""
QUERY_PASSWORD = re.compile(r"([?&](?:password|username)=)[^&\s]*")
"""Of a URL for redis-py."""


def redact(_: object, __: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Hides what is secret, by the name of the field and by the look of a URL."""
    for name, value in event.items():
        event[name] = _redacted(name, value)
    return event


def _redacted(name: str, value: object) -> object:
    if name not in SECRETS_KEPT and any(word in name.lower() for word in SECRET_NAMES):
        return "***"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {inner: _redacted(str(inner), item) for inner, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redacted("", item) for item in value]
    text = value if isinstance(value, str) else _as_text(value)
    return redact_text(text) if "://" in text else text


def _as_text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - whatever it raises, a log stops nothing
        return f"<{type(value).__name__}>"


def redact_text(text: str) -> str:
    """A text without the passwords of the URLs in it."""
    return QUERY_PASSWORD.sub(r"\1***", URL_PASSWORD.sub(r"\1***@", text))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    """Where the log of a node is, and how much of it is kept."""

    path: Path
    """`SCRATCH/logs/<node>/node.log`."""
    node: str
    max_bytes: int
    files: int

    @classmethod
    def from_environment(cls) -> Self | None:
        """That of this process's node; None outside of a node, and when what is said is none."""
        try:
            found = orjson.loads(os.environ.get(NODE_LOG, ""))
            return cls(
                path=Path(found["path"]), node=str(found["node"]), max_bytes=int(found["max_bytes"]), files=max(2, int(found["files"]))
            )
        except (ValueError, KeyError, TypeError):
            return None

    def for_children(self) -> dict[str, str]:
        """Variables of their environment."""
        told = {"path": str(self.path), "node": self.node, "max_bytes": self.max_bytes, "files": self.files}
        return {NODE_LOG: orjson.dumps(told).decode()}

    def open(self) -> SharedLogFile:
        """For a process that writes to it."""
        return SharedLogFile(self.path, max_bytes=self.max_bytes, files=self.files)


class PatientLog:
    """Writes what it can. Lines that it cannot write are counted; the next one that it can write tells of them.

    Args:
        write: raises OSError, or ValueError, where it cannot.
        render: a line that tells of lost ones, of its fields.
        tell: told why, and how many lines are lost by now.
    """

    def __init__(
        self, write: Callable[[str], object], render: Callable[[dict[str, object]], str], tell: Callable[[str, int], object] | None = None
    ) -> None:
        self._write, self._render, self._tell = write, render, tell
        self._lock = threading.RLock()
        self._lost = 0
        self._since = ""

    def write(self, text: str) -> int:
        """Writes, or does not. Answers the length either way."""
        with self._lock:
            if why := self.retry() or self._tried(text):
                self._since = self._since if self._lost else _now()
                self._lost += 1
                if self._tell is not None:
                    with contextlib.suppress(OSError, ValueError):
                        self._tell(why, self._lost)
        return len(text)

    def retry(self) -> str:
        """Tells of lost lines, where there are some; why it cannot, else nothing."""
        with self._lock:
            if not self._lost:
                return ""
            why = self._tried(self._render({"event": "log_written_again", "lost": self._lost, "since": self._since}))
            self._lost = self._lost if why else 0
            return why

    def flush(self) -> None:
        """Each line is flushed as it is written."""

    def _tried(self, text: str) -> str:
        """Why it was not written; empty when it was."""
        try:
            self._write(text)
        except (OSError, ValueError) as error:  # ValueError: closed, or not to be encoded
            return str(error) or type(error).__name__
        return ""


class NodeLogCopy:
    """A structlog processor: a copy of each event in the log of the node, once there is one.

    Attributes:
        alone: nothing else is done with an event.
    """

    def __init__(self) -> None:
        self.alone = False
        self.log: PatientLog | None = None
        self._bound: dict[str, object] = {}

    def keep_in(self, log: NodeLog, tell: Callable[[str, int], object]) -> None:
        """From now on."""
        self._bound = {"node": log.node, "process": os.environ.get(PROCESS_NAME) or "launcher", "pid": os.getpid()}
        file = log.open()
        self.log = PatientLog(
            lambda line: file.write(line.encode("utf-8", "backslashreplace")),
            lambda fields: self._render({"timestamp": _now(), "level": "warning", **fields}),
            tell,
        )

    def __call__(self, _: object, __: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
        if self.log is not None:
            self.log.write(self._render(event))
            if self.alone:
                raise structlog.DropEvent
        return event

    def _render(self, event: MutableMapping[str, object]) -> str:
        return _dumps({**event, **self._bound}) + "\n"


_node_log_copy = NodeLogCopy()


def configure_logs(*, as_json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """Sets up the logs of this process; call it once, in `main`. A child of a launcher writes to the log of the node and nowhere else."""
    out = stream or sys.stderr
    last: structlog.typing.Processor
    if as_json:
        last = structlog.processors.JSONRenderer(serializer=_dumps)
    else:
        last = structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=24)
    repeats = Repeats()

    def render(fields: dict[str, object]) -> str:
        return str(last(None, "warning", {"timestamp": _now(), "level": "warning", **fields})) + "\n"

    patient = PatientLog(_flushing(out), render)
    structlog.configure(
        processors=[
            repeats,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            _node_log_copy,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, patient)),
        cache_logger_on_first_use=True,
    )
    atexit.register(_tell_left_out, repeats)
    if stream is None and (node := NodeLog.from_environment()) is not None:
        _node_log_copy.alone = True
        keep_node_log(node)


def keep_node_log(log: NodeLog, tell: Callable[[str, int], object] | None = None) -> PatientLog:
    """From now on the log of a node has what this process logs, warnings of Python's `logging`, and threads that die.

    Args:
        tell: told why a line could not be written, and how many were lost by then; by default the first is told on standard error.
    """

    def tell_once(why: str, lost: int) -> None:
        if lost == 1:
            sys.stderr.write(f"{_now()} {log.path} cannot be written: {why}. Work goes on, lines are dropped.\n")

    _node_log_copy.keep_in(log, tell or tell_once)
    _keep_warnings_of_libraries()
    threading.excepthook = _thread_died
    assert _node_log_copy.log is not None
    return _node_log_copy.log


class _FromLogging(logging.Handler):
    """What libraries warn of, as events."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        say = log.warning if record.levelno < logging.ERROR else log.error
        say("library_said", library=record.name, text=record.getMessage())


def _keep_warnings_of_libraries() -> None:
    """By a thread: asyncio warns of a lost task when the collector finds it, which may be in the middle of a line of ours."""
    found: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(found)
    handler.setLevel(logging.WARNING)
    listener = logging.handlers.QueueListener(found, _FromLogging())
    listener.start()
    atexit.register(listener.stop)
    logging.getLogger().addHandler(handler)


def _thread_died(died: threading.ExceptHookArgs) -> None:
    if died.exc_type is not SystemExit:
        name = died.thread.name if died.thread is not None else "?"
        structlog.get_logger(__name__).error("thread_died", thread=name, exc_info=died.exc_value)


def _tell_left_out(repeats: Repeats) -> None:
    if left := repeats.left():
        structlog.get_logger(__name__).warning("process_ends", also_left_out=left)


def _flushing(out: TextIO) -> Callable[[str], object]:
    def write(text: str) -> None:
        out.write(text)
        out.flush()

    return write


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _dumps(event: MutableMapping[str, object], default: object = None) -> str:
    ordered = {**{name: event[name] for name in FIRST_FIELDS if name in event}, **event}
    try:
        return orjson.dumps(ordered, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a number of more than 64 bits, or half a character
        return orjson.dumps({name: ascii(value) if name not in FIRST_FIELDS else str(value) for name, value in ordered.items()}).decode()
