"""Images as jobs of the housekeeping queue: the same functions as in the foreground, with arguments and results that JSON knows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.images.building import build_image
from ops.images.pulling import Wanted, pull_many
from workers.sandbox.images import ImageSettings, ImageStore
from workers.sandbox.service.settings import SandboxSettings


def pull(images: Sequence[Mapping[str, str]], *, refresh: bool = False, extract: bool = False, share: bool = False) -> dict[str, Any]:
    """Brings images of (`name`, `source`). A failed one is in the answer: the others are there."""
    settings, stop = ImageSettings.load(), threading.Event()
    wanted = [Wanted(name=image["name"], source=image.get("source", "")) for image in images]
    store = ImageStore.here(settings, stop=stop)
    report = pull_many(store, wanted, parallel=settings.parallel, stop=stop, refresh=refresh, extract=extract, share=share)
    return report.as_map()


def build(definition: str, *, name: str = "", refresh: bool = False, share: bool = False) -> dict[str, Any]:
    """Builds a definition, read from a file that this machine can see."""
    built = asyncio.run(
        build_image(ImageStore.here(), Path(definition), name=name, settings=SandboxSettings.load(), refresh=refresh, share=share)
    )
    return {"name": built.record.name, "digest": built.record.digest, "began_from": built.began_from}


def prune(*, to_gib: float | None = None) -> dict[str, Any]:
    """Removes what dead processes left, and images beyond the budget, on the machine that works this."""
    done = ImageStore.here().prune(target_bytes=None if to_gib is None else int(to_gib * 1024**3))
    return {"removed": list(done.removed), "freed_bytes": done.freed_bytes, "size_bytes": done.size_bytes, "swept": done.swept}
