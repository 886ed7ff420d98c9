"""What the children of a launcher are told of Redis: a password by file, wherever it came from (docs/adr/0033-logs-and-secrets.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.redis_address import take_out_credentials
from pipeline.settings import QueueSettings


@contextmanager
def address_for_children(queue: QueueSettings, file: Path) -> Iterator[dict[str, str]]:
    """Variables of their environment, while they may run.

    Args:
        queue: as the launcher has it; a password in its address goes to `file`.
        file: in a private folder; removed at the end.
    """
    found = take_out_credentials(queue.redis_url)
    if not found.password:
        yield {"ROLLSTREAM_REDIS_URL": queue.redis_url}
        return
    if queue.redis_user and not found.user:  # a user of the settings is not used with a password of an address, and would be with a file
        yield {}
        return
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as out:
        out.write(found.password + "\n")
    fresh.replace(file)
    try:
        user = {"ROLLSTREAM_REDIS_USER": found.user} if found.user else {}
        yield {"ROLLSTREAM_REDIS_URL": found.url, "ROLLSTREAM_REDIS_PASSWORD_FILE": str(file), **user}
    finally:
        file.unlink(missing_ok=True)
