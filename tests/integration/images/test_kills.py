"""`kill -9` at every step: what is there afterwards is whole or not there, and the next one succeeds and leaves nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.testing import wait_until
from tests.e2e.conftest import ROOT
from tests.image_files import a_sif, a_simple_archive
from tests.integration.images.conftest import Run, leftovers, store_environment
from workers.sandbox.images import ImageStore

OF_AN_ARCHIVE = (
    *("image_locked", "image_layer:1", "image_layer:2", "image_filled", "image_described", "image_made", "image_unnamed"),
    "image_named",
)
OF_A_SIF = ("image_fetched", "image_unshared", "image_shared", "image_locked", "image_filled", "image_described", "image_made")
OF_A_REMOVAL = ("image_condemned", "image_trashed")
OF_A_BUILD = ("image_copied:1", "image_copied:2", "image_filled:2", "image_made:2", "image_unnamed")
IMAGE_POINTS = (*OF_AN_ARCHIVE, *OF_A_SIF, *OF_A_REMOVAL, *OF_A_BUILD, "image_leased")
"""Where commands of images are killed by the tests of this folder."""


@pytest.mark.parametrize("step", OF_AN_ARCHIVE)
def test_a_pull_of_an_archive_killed_at_a_step_is_done_by_the_next(image: Run, store: ImageStore, tmp_path: Path, step: str) -> None:
    source = f"oci-archive:{a_simple_archive(tmp_path, layers=3)}"

    killed = image("pull", "task", "--source", source, ROLLSTREAM_FAILPOINT=step)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (store.shared.find("task") is None) == (step != "image_named")
    again = image("pull", "task", "--source", source)
    assert again.returncode == 0, again.stderr
    assert dict(store.damages()) == {"task": []}
    assert leftovers(store) == []


@pytest.mark.parametrize("step", OF_A_SIF)
def test_a_pull_of_a_sif_killed_at_a_step_is_done_by_the_next(image: Run, store: ImageStore, tmp_path: Path, step: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "hello").write_text("hi")
    source = f"sif:{a_sif(tmp_path / 'x.sif', tree)}"

    killed = image("pull", "task", "--source", source, ROLLSTREAM_FAILPOINT=step)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = image("pull", "task", "--source", source)
    assert again.returncode == 0, again.stderr
    assert dict(store.damages()) == {"task": []}
    assert [path for path in leftovers(store) if not path.endswith(".sif")] == []


@pytest.mark.parametrize("step", OF_A_REMOVAL)
def test_a_removal_killed_at_a_step_leaves_a_whole_image_or_none(image: Run, store: ImageStore, tmp_path: Path, step: str) -> None:
    record = store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")

    killed = image("prune", "--to-gib", "0", ROLLSTREAM_FAILPOINT=step)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if step == "image_condemned":
        assert store.node.damage(record.digest) == []
    else:
        assert store.node.find(record.digest) is None
    with store.lease("task") as lease:
        assert (lease.root / "bin/hello").read_bytes() == b"hello"
    assert image("prune").returncode == 0
    assert leftovers(store) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
async def test_no_program_outlives_the_command_that_ran_it(store: ImageStore, tmp_path: Path, number: signal.Signals) -> None:
    """Apptainer has children of its own, which would go on writing into the shared store."""
    pids, program = tmp_path / "pids", tmp_path / "apptainer"
    program.write_text(f'#!/bin/sh\nsleep 300 & echo $$ $! > "{pids}.new"; mv "{pids}.new" "{pids}"; wait\n')
    program.chmod(0o755)
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", "image", "pull", "docker://x"),
        cwd=ROOT,
        env=store_environment(store, ROLLSTREAM_IMAGE_APPTAINER=str(program)),
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    await wait_until(pids.exists, "the program ran", timeout_s=30)
    started = [int(pid) for pid in pids.read_text().split()]

    command.send_signal(number)

    code = await asyncio.wait_for(command.wait(), 30)
    assert code == {signal.SIGINT: 130}.get(number, -number)
    await wait_until(
        lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in started), "both ended", timeout_s=20
    )
    if number == signal.SIGINT:
        assert leftovers(store) == []


def test_a_lease_ends_with_its_process(image: Run, store: ImageStore, tmp_path: Path) -> None:
    record = store.pull("task", f"oci-archive:{a_simple_archive(tmp_path)}")

    assert image("check", "task", ROLLSTREAM_FAILPOINT="image_leased").returncode == -signal.SIGKILL

    assert store.node.remove(record.digest)


def test_what_is_being_made_is_not_swept(image: Run, store: ImageStore) -> None:
    with store.node.temporary() as folder:
        store.prune()
        assert folder.exists()
    assert leftovers(store) == []
