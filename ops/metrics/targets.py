"""Target files for Prometheus's `file_sd`: one a listener, there while it listens, and after it when it did not end as planned."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import orjson
import structlog

from ops.metrics.settings import MetricsSettings
from pipeline.errors import InvalidRequest

log = structlog.get_logger(__name__)

EVERY_ADDRESS = ("0.0.0.0", "::")


@contextlib.contextmanager
def target_file(settings: MetricsSettings, namespace: str, part: Literal["exporter", "node"], name: str, url: str) -> Iterator[Path | None]:
    """Says where a listener is. The file is written whole or not at all, and taken away when the block ends without an error.

    Args:
        name: by which its next life replaces the file: of the node, or of the machine (and port) that the exporter is on.
        url: that it answers on.

    Raises:
        InvalidRequest: it cannot be written.
    """
    if settings.targets_dir is None:
        yield None
        return
    path = settings.targets_dir / f"rollstream-{namespace}-{part}-{name}.json"
    labels = {"rollstream": part, "namespace": namespace, **({"node": name} if part == "node" else {})}
    content = orjson.dumps([{"targets": [target(url)], "labels": labels}]) + b"\n"
    try:
        settings.targets_dir.mkdir(parents=True, exist_ok=True)
        _write(path, content)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be written: {error.strerror or error}. Choose another folder, or none", field="metrics.targets_dir"
        ) from None
    log.info("target_written", file=str(path), url=url)
    yield path
    try:
        if path.read_bytes() == content:  # else another has the name by now
            path.unlink()
    except FileNotFoundError:
        pass  # somebody took it away
    except OSError as error:
        log.warning("target_not_removed", file=str(path), error=str(error), do="remove it: Prometheus takes it for a process that is gone")


def target(url: str) -> str:
    """Host and port, as another machine finds them: a listener on every address is found by the name of its machine."""
    found = urlsplit(url)
    if found.hostname in EVERY_ADDRESS:
        return f"{socket.getfqdn()}:{found.port}"
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
