"""Stores of a test's own, and processes that use them and may be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from workers.sandbox.images import ImageSettings, ImageStore

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """A store with room."""
    store = ImageStore(tmp_path / "shared", tmp_path / "node", ImageSettings(budget_gib=1, max_image_gib=0.5))
    store.node.open()
    return store


def store_environment(store: ImageStore, **more: str) -> dict[str, str]:
    """What a process needs to use the same store."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(store.node.folder.parent),
        "ROLLSTREAM_IMAGE_SHARED_DIR": str(store.shared.folder),
        "ROLLSTREAM_IMAGE_NODE_DIR": str(store.node.folder),
        "ROLLSTREAM_IMAGE_BUDGET_GIB": "1",
        **more,
    }


@pytest.fixture
def image(store: ImageStore) -> Run:
    """Runs `rollstream image WORDS` on the store, in a process of its own."""
    return command_on(store)


def command_on(store: ImageStore) -> Run:
    """What runs `rollstream image WORDS` on a store."""

    def run(*words: str, program: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, sys.executable, "-m", "ops.cli", "image", *words],
            cwd=ROOT,
            env=store_environment(store, **variables),
            capture_output=True,
            text=True,
            timeout=50,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


def leftovers(store: ImageStore) -> list[str]:
    """What lies in a store and is no whole image, name or SIF."""
    node = [path.name for path in store.node.folder.iterdir() if len(path.name) != 64 and path.name != ".locks"]
    locks = [path.name for path in (store.node.folder / ".locks").iterdir() if not (store.node.folder / path.name).exists()]
    shared = [path.name for path in store.shared.folder.rglob(".new-*")] if store.shared.folder.exists() else []
    return node + locks + shared
