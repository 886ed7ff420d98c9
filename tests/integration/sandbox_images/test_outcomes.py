"""What becomes of a job whose image is not there, or is damaged: real INIT worker, node service, image store and Redis."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.messages import Stage
from tests.contract.sandbox.kinds import bubblewrap, usable
from tests.integration.images.conftest import store
from tests.integration.stages.conftest import fleet
from tests.integration.stages.fleet import Fleet, Play
from workers.handlers.base import Environment, StageContext
from workers.sandbox import SandboxSpec
from workers.sandbox.images import ImageStore
from workers.sandbox.images.records import Contents, NameRecord
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.folder import remove_tree
from workers.sandbox.service import RemoteSandboxes, served_here

__all__ = ["fleet", "store"]

pytestmark = [pytest.mark.one_server, pytest.mark.skipif(os.geteuid() == 0, reason="sandboxes with walls refuse root")]


@pytest.fixture
async def sandboxes(place: Path, store: ImageStore) -> AsyncIterator[RemoteSandboxes]:
    """The node service of a node that has this image store."""
    usable("bubblewrap")
    backend = bubblewrap(place)._backend
    local = LocalSandboxes(backend, scratch_dir=place / "s", run_dir=place / "r", node="n1", images=store)
    async with served_here(local, place / "r") as remote:
        yield remote


@pytest.fixture
async def onlooker(place: Path, sandboxes: RemoteSandboxes) -> AsyncIterator[RemoteSandboxes]:
    """Another client of that service."""
    async with RemoteSandboxes(place / "r") as onlooker:
        yield onlooker


async def init(context: StageContext) -> Environment:
    """The image is the job's prompt."""
    sandbox = await context.provider().start(SandboxSpec(image=context.spec.prompt.id), context.owner)
    return Environment(sandbox=(await sandbox.park()).to_map())


def broken_images(store: ImageStore, folder: Path) -> None:
    """Images of each way to be of no use."""
    for name in ("half", "gone-half", "meta", "no-bash"):
        source = folder / name
        (source / "bin").mkdir(parents=True)
        (source / "bin" / name).write_text("x")
        digest = store.pull(name, f"folder:{source}").digest
        if name in ("half", "gone-half"):  # as a copy of the store that ended in the middle
            (store.node.folder / digest / "meta.json").unlink()
        if name == "gone-half":
            remove_tree(source)
        if name == "meta":
            (store.node.folder / digest / "meta.json").write_text('{"digest": "cut o')
    store.shared.record(
        NameRecord.new("sif", digest="a" * 64, kind="sif", source="docker://x", contents=Contents(), size_bytes=9, sif="a" * 64)
    )
    store.shared.sif("a" * 64).parent.mkdir(parents=True, exist_ok=True)
    store.shared.sif("a" * 64).write_bytes(b"not those bytes")
    store.shared.record(
        NameRecord.new("record", digest="b" * 64, kind="sif", source="docker://x", contents=Contents(), size_bytes=9, sif="b" * 64)
    )
    (written,) = (store.shared.folder / "names").glob("record*")
    written.write_text("{cut o")


MISSING = "sandbox: image_missing: image {name}: .*; bring it with: rollstream image pull {name}"
OUTCOMES = {
    "missing": MISSING,
    "gone-half": MISSING,
    "sif": "sandbox: BadImage: image sif: .* is damaged: rollstream image pull --refresh sif",
    "meta": "sandbox: ImageError: image meta: .*rollstream image check",
    "record": "sandbox: ImageError: image record: .*rollstream image check",
    "half": "sandbox: BadImage: image half: it has no bash",
    "no-bash": "sandbox: BadImage: image no-bash: it has no bash",
}
"""What the job's record says. `half` was made again, and is then as good as its source is."""


@pytest.mark.timeout(60)
async def test_each_is_said_in_the_record_and_none_hangs_or_makes_the_node_ill(
    fleet: Fleet, sandboxes: RemoteSandboxes, onlooker: RemoteSandboxes, store: ImageStore, tmp_path: Path
) -> None:
    """Two images without a bash once made a node degraded: five starts in a row had failed, all of them the images' fault."""
    broken_images(store, tmp_path / "sources")
    told: list[str] = []
    onlooker.on_degraded(told.append)
    jobs = dict(zip(OUTCOMES, await fleet.add(*OUTCOMES, max_failed=0), strict=True))
    fleet.start(Stage.INIT, play=Play(on_init=init), sandboxes=sandboxes)

    results = await fleet.results(len(jobs), timeout_s=40)

    for name, job in jobs.items():
        assert results[job]["out"] == "infra_failure"
        h = await fleet.audit.job(job)
        assert re.match(OUTCOMES[name].format(name=name), h["why"]), h["why"]
    assert await onlooker.owned() == []  # and what it was told before that has come
    assert told == []
    assert await sandboxes.owned() == []
