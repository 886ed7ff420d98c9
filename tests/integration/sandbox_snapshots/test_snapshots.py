"""Snapshots where it is hard: of trees that a stranger made, beyond their bound, cancelled, and of a sandbox that ends meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from workers.sandbox import Sandbox, SandboxGone, SandboxOwner, SandboxProvider, SandboxSpec, Snapshot, SnapshotError

JOB = SandboxOwner(job_id="job", attempt=1, boot_id="boot")


async def sh(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command, timeout_s=20)
    assert result.returncode == 0, result.stderr_text
    return result.stdout_text


async def test_hostile_trees_are_kept_as_they_are(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Closed folders and files, holes of a terabyte, FIFOs, sockets, names that are no text, deep folders: none of them stops or leads
    a copy astray, and both sides have them as they were."""
    make = """
        mkdir closed closed/in; echo x >closed/in/f; chmod 200 closed/in/f; chmod 000 closed/in; chmod 500 closed
        truncate -s 1T hole; mkfifo fifo
        printf x >$'na\\xffme'; ln -s /etc/passwd out; ln -s loop loop
        d=$(printf 'd/%.0s' $(seq 100)); mkdir -p deep; cd deep; mkdir -p $d
    """
    look = """
        stat -c '%n %a %F %s' closed hole fifo na* out loop | cat -v
        chmod 700 closed; stat -c %a closed/in; chmod 700 closed/in; stat -c '%a %s' closed/in/f
    """
    depth = "cd deep; n=0; while cd -P d 2>/dev/null; do n=$((n+1)); done; echo $n"
    wanted = replace(spec, limits=replace(spec.limits, file_bytes=2 * 1024**4))
    async with await provider.start(wanted, JOB) as parent:
        await sh(parent, make)
        snapshot = await parent.snapshot()
        async with await provider.restore(snapshot, JOB) as child:
            assert await sh(child, look) == await sh(parent, look)
            assert await sh(child, depth) == "100\n"
            assert int((await sh(child, "du -k hole")).split()[0]) < 1000


async def test_snapshots_of_a_job_have_a_bound_together(provider: SandboxProvider, spec: SandboxSpec, place: Path) -> None:
    wanted = replace(spec, limits=replace(spec.limits, disk_bytes=5 * 1024**2))
    async with await provider.start(wanted, JOB) as sandbox:
        await sh(sandbox, "head -c 3M /dev/zero >big")
        first = await sandbox.snapshot()

        with pytest.raises(SnapshotError, match="no room left"):
            await sandbox.snapshot()

        assert len(list((place / "scratch").iterdir())) == 2  # the sandbox, and the first
        await provider.drop(first, JOB)
        await provider.drop(first, JOB)
        await provider.drop(await sandbox.snapshot(), JOB)
    assert list((place / "scratch").iterdir()) == []


async def test_a_cancelled_snapshot_leaves_nothing_and_lets_go(provider: SandboxProvider, spec: SandboxSpec, place: Path) -> None:
    """At any moment: before anything is there, while it is made, and while files are copied."""
    async with await provider.start(spec, JOB) as sandbox:
        await sh(sandbox, "for i in $(seq 1000); do echo $i >f$i; done; (while :; do echo x >>beat; sleep 0.02; done) >/dev/null 2>&1 &")
        for begun in ("", ".new-*", ".new-*/**/f1*"):
            taking = asyncio.create_task(sandbox.snapshot())
            await wait_until(partial(has_begun, taking, place, begun), f"a file {begun}")
            taking.cancel()
            await asyncio.wait([taking])

            assert taking.cancelled()
            assert [path.name for path in (place / "scratch").iterdir()] == [sandbox.handle.sandbox_id]
        size = len(await sandbox.read_file("beat"))
        await sh(sandbox, f"until [ $(stat -c %s beat) -gt {size} ]; do sleep 0.01; done")


def has_begun(taking: asyncio.Task[Snapshot], place: Path, pattern: str) -> bool:
    return not pattern or taking.done() or bool(list((place / "scratch").glob(pattern)))


async def test_the_end_of_a_sandbox_ends_the_snapshot_that_is_being_taken(
    provider: SandboxProvider, spec: SandboxSpec, place: Path
) -> None:
    sandbox = await provider.start(spec, JOB)
    await sh(sandbox, "for i in $(seq 500); do echo $i >f$i; done")

    taking = asyncio.create_task(sandbox.snapshot())
    await asyncio.sleep(0)
    await sandbox.stop()

    with pytest.raises(SandboxGone):
        await taking
    assert list((place / "scratch").iterdir()) == []
