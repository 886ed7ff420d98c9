"""Target files for Prometheus's `file_sd`: one a listener, there while it listens, and after it when it did not end as planned."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import orjson
import structlog

from ops.metrics.settings import MetricsSettings
from pipeline.errors import InvalidRequest

log = structlog.get_logger(__name__)

EVERY_ADDRESS = ("0.0.0.0", "::")


class TargetFile:
    """Says where a listener is. Written whole or not at all; its next life replaces it.

    Args:
        name: of the node, or of the machine (and port) that the exporter is on.
    """

    def __init__(self, settings: MetricsSettings, namespace: str, part: Literal["exporter", "node"], name: str) -> None:
        folder = settings.targets_dir
        self.path = None if folder is None else folder / f"rollstream-{namespace}-{part}-{name}.json"
        self._labels = {"rollstream": part, "namespace": namespace, **({"node": name} if part == "node" else {})}
        self._content = b""

    def write(self, url: str) -> None:
        """When the listener answers at `url`.

        Raises:
            InvalidRequest: it cannot be written.
        """
        if self.path is None:
            return
        self._content = orjson.dumps([{"targets": [target(url)], "labels": self._labels}]) + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _write(self.path, self._content)
        except OSError as error:
            raise InvalidRequest(
                f"{self.path} cannot be written: {error.strerror or error}. Choose another folder, or none", field="metrics.targets_dir"
            ) from None
        log.info("target_written", file=str(self.path), url=url)

    def remove(self) -> None:
        """When the listener ends as planned. One that another has written meanwhile stays."""
        if self.path is None or not self._content:
            return
        try:
            if self.path.read_bytes() == self._content:
                self.path.unlink()
        except FileNotFoundError:
            pass  # somebody took it away
        except OSError as error:
            do = "remove it: Prometheus takes it for a process that is gone"
            log.warning("target_not_removed", file=str(self.path), error=str(error), do=do)


def target(url: str) -> str:
    """Host and port, as another machine finds them: a listener on every address is found by the name of its machine."""
    found = urlsplit(url)
    if found.hostname in EVERY_ADDRESS:
        return f"{socket.gethostname()}:{found.port}"
    return found.netloc


def _write(path: Path, content: bytes) -> None:
    """Prometheus reads the folder when it changes, and everybody may read what is there."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.chmod(0o644)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
