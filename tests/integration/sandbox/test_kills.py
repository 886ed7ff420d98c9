"""Promise 8 at its root: whatever is killed, nothing of a sandbox goes on running."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import Kind, usable
from tests.integration.sandbox.conftest import AttachedWorker, StartWorker
from workers.sandbox import ExecResult, SandboxBusy, SandboxGone, SandboxLeak, SandboxOwner
from workers.sandbox.local import LocalSandbox, LocalSandboxes, owners, sweep
from workers.sandbox.local.environment import MARK
from workers.sandbox.local.folder import SandboxFolder, remove_tree
from workers.sandbox.local.identity import identify, is_running, marked_processes
from workers.sandbox.local.teardown import tear_down

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="daemons are only followed where there are subreapers: Linux")


def nothing_runs(worker: AttachedWorker) -> bool:
    return not any(map(is_running, worker.inside)) and not marked_processes(MARK, worker.handle.sandbox_id)


async def test_kill_9_of_the_worker_ends_everything_daemons_too(start_worker: StartWorker) -> None:
    worker = await start_worker()

    worker.kill()

    await wait_until(lambda: nothing_runs(worker), "the sandbox's processes are gone", timeout_s=2)


async def test_kill_9_of_the_holder_ends_everything_it_started_and_the_sweep_the_rest(
    start_worker: StartWorker, place: Path, kind: Kind
) -> None:
    worker = await start_worker()
    holder = SandboxFolder.open(Path(worker.handle.folder)).state().holder
    assert holder is not None

    os.kill(holder.pid, signal.SIGKILL)
    await worker.process.wait()  # its sandbox is gone: it ends
    await sweep(place / "scratch", lambda owner: False)

    left = [process for process in worker.inside if is_running(process)]
    # `env -i` took the mark away, and its parent was not one of the holder's own children; behind walls PID 1 takes all along
    unmarked = 0 if kind.walls else 1
    assert len(left) <= unmarked
    assert not marked_processes(MARK, worker.handle.sandbox_id)


async def test_what_waits_for_a_killed_holder_is_told_and_stop_still_cleans_up(place: Path, kind: Kind) -> None:
    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        await sandbox.shell().run("setsid sleep 1004 </dev/null >/dev/null 2>&1 & disown", timeout_s=10)

        holder = SandboxFolder.open(Path(sandbox.handle.folder)).state().holder
        assert holder is not None
        waits = asyncio.create_task(sandbox.exec("sleep 60", timeout_s=60))
        await sandbox.exec("true", timeout_s=10)

        os.kill(holder.pid, signal.SIGKILL)

        with pytest.raises(SandboxGone):
            await waits
        with pytest.raises(SandboxGone):
            await sandbox.shell().run("true", timeout_s=10)
        await sandbox.stop()

        assert not marked_processes(MARK, sandbox.handle.sandbox_id)
        assert list((place / "scratch").iterdir()) == []


@pytest.mark.slow
async def test_a_holder_that_does_not_end_is_named(place: Path) -> None:
    """It carries no mark and no record is kept of it: a leak without a number told nobody what to look at."""
    kind = usable("process")
    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        assert isinstance(sandbox, LocalSandbox)
        holder = sandbox.folder.state().holder
        assert holder is not None
        os.kill(holder.pid, signal.SIGSTOP)

        with pytest.raises(SandboxLeak, match=f"still running after it was killed: {holder.pid}$"):
            await sandbox.kill()

        os.kill(holder.pid, signal.SIGKILL)
        await sandbox.wait_gone()
        await tear_down(sandbox.folder)
        assert list((place / "scratch").iterdir()) == []


async def test_kill_9_of_pid_1_is_the_end_of_the_sandbox_and_said(place: Path, kind: Kind) -> None:
    """Nothing inside can do it; memory that runs out can. What entered ends with it, and the holder too."""
    if not kind.walls:
        pytest.skip("no PID 1 of its own")
    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        assert isinstance(sandbox, LocalSandbox)
        waits = asyncio.create_task(sandbox.exec("setsid sleep 1005 & sleep 60", timeout_s=60))
        await sandbox.exec("true", timeout_s=10)
        assert sandbox.keeper is not None

        os.kill(sandbox.keeper.pid, signal.SIGKILL)

        with pytest.raises(SandboxGone, match="PID 1 of it was killed"):
            await waits
        await sandbox.stop()
        assert not marked_processes(MARK, sandbox.handle.sandbox_id)
        assert list((place / "scratch").iterdir()) == []


async def test_what_works_on_files_and_ends_with_its_sandbox_is_no_failure_of_its_own(place: Path, kind: Kind) -> None:
    """The holder kills the helper for files as it ends, and is heard of after it: for a moment the sandbox seemed to be there, and broken.
    Where the helper alone was killed the next operation has a new one."""
    if not kind.walls:
        pytest.skip("files are worked on by the worker itself")
    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        await sandbox.write_file("file", b"content")
        holder = SandboxFolder.open(Path(sandbox.handle.folder)).state().holder
        assert holder is not None

        helper = file_helper(holder.pid)
        helper.kill()
        await wait_until(lambda: identify(helper.pid) is None, "the helper has ended")
        assert await sandbox.read_file("file") == b"content"

        helper = file_helper(holder.pid)
        helper.suspend()
        reads = asyncio.create_task(sandbox.read_file("file"))
        await waits(reads)
        os.kill(holder.pid, signal.SIGSTOP)  # it is ending, and slow
        helper.kill()
        await waits(reads)
        os.kill(holder.pid, signal.SIGKILL)

        with pytest.raises(SandboxGone):
            await reads
        await sandbox.stop()


async def test_what_works_on_files_and_is_killed_with_the_builder_is_no_failure_of_its_own(place: Path, kind: Kind) -> None:
    """The holder hears of both ends in one look, and of the question whether it is well just before: it said that it was, and the sandbox
    seemed to be there, and broken."""
    if not kind.walls:
        pytest.skip("nothing builds walls")
    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        await sandbox.write_file("file", b"content")
        assert isinstance(sandbox, LocalSandbox)
        holder, keeper = SandboxFolder.open(Path(sandbox.handle.folder)).state().holder, sandbox.keeper
        assert holder is not None
        assert keeper is not None
        helper = file_helper(holder.pid)
        (builder,) = (above for above in psutil.Process(keeper.pid).parents() if above.ppid() == holder.pid)
        helper.suspend()
        reads = asyncio.create_task(sandbox.read_file("file"))
        await waits(reads)

        os.kill(holder.pid, signal.SIGSTOP)
        builder.kill()
        helper.kill()
        await waits(reads)
        os.kill(holder.pid, signal.SIGCONT)

        with pytest.raises(SandboxGone):
            await reads
        await sandbox.stop()


def file_helper(holder: int) -> psutil.Process:
    (helper,) = (child for child in psutil.Process(holder).children() if "file_helper.py" in " ".join(child.cmdline()))
    return helper


async def waits(task: asyncio.Task[bytes] | asyncio.Task[ExecResult]) -> None:
    """Sees that a task does nothing for a while."""
    done, _ = await asyncio.wait([task], timeout=0.2)
    assert not done


async def test_what_is_started_as_pid_1_dies_is_told_so(place: Path, kind: Kind) -> None:
    """The holder is asked to start it before it has heard of the death: who enters finds nobody there, and that looked like a command that
    cannot be started in a sandbox that is well."""
    if not kind.walls:
        pytest.skip("no PID 1 of its own")
    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        assert isinstance(sandbox, LocalSandbox)
        holder, keeper = SandboxFolder.open(Path(sandbox.handle.folder)).state().holder, sandbox.keeper
        assert holder is not None
        assert keeper is not None
        await sandbox.exec("true", timeout_s=10)

        os.kill(holder.pid, signal.SIGSTOP)
        os.kill(keeper.pid, signal.SIGKILL)
        await wait_until(lambda: not is_running(keeper), "PID 1 has ended")
        starts = asyncio.create_task(sandbox.exec("true", timeout_s=10))
        await waits(starts)
        os.kill(holder.pid, signal.SIGCONT)

        with pytest.raises(SandboxGone, match="PID 1 of it was killed"):
            await starts
        await sandbox.stop()


async def test_after_a_kill_the_lease_is_free_and_what_was_changed_is_not_met_again(
    start_worker: StartWorker, place: Path, kind: Kind
) -> None:
    worker = await start_worker("job", attempt=1)
    worker.kill()
    await wait_until(lambda: nothing_runs(worker), "the sandbox's processes are gone")

    async with kind.open(place) as provider:

        async def lease_is_free() -> bool:
            """The holder of the lease is the last to go."""
            try:
                await provider.attach(worker.handle, SandboxOwner(job_id="job", attempt=2, boot_id="b"))
            except SandboxBusy:
                return False
            return True

        with pytest.raises(SandboxGone, match="attempt 1 changed it and was lost"):
            await wait_until(lease_is_free, "the lease is free", timeout_s=5)


@pytest.mark.slow
async def test_a_later_start_takes_the_job_from_a_worker_that_still_lives(start_worker: StartWorker, place: Path, kind: Kind) -> None:
    """A frozen worker loses its lease; the next attempt must not find its sandbox working."""
    worker = await start_worker("job", attempt=1)
    os.kill(worker.process.pid, signal.SIGSTOP)

    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=2, boot_id="b"))

        assert nothing_runs(worker)
        assert [owner.attempt for owner in owners(place / "scratch")] == [2]
        await sandbox.stop()
    os.kill(worker.process.pid, signal.SIGCONT)
    assert await worker.process.wait() == 0


@pytest.mark.slow
async def test_a_sweep_ends_what_is_over_and_leaves_what_is_not(start_worker: StartWorker, place: Path) -> None:
    over, live = await start_worker("over"), await start_worker("live")
    (place / "scratch" / ".new-half").mkdir()
    os.utime(place / "scratch" / ".new-half", (0, 0))
    (place / "scratch" / ".trash-old").mkdir()
    (place / "scratch" / "epoch").write_text("not a sandbox")

    report = await sweep(place / "scratch", lambda owner: owner.job_id == "live")

    assert (report.live, report.removed, report.failed) == (1, (over.handle.sandbox_id,), ())
    assert nothing_runs(over)
    assert all(map(is_running, live.inside))
    assert sorted(path.name for path in (place / "scratch").iterdir()) == sorted([live.handle.sandbox_id, "epoch"])
    assert [path.name for path in (place / "run").iterdir()] == [live.handle.sandbox_id]
    assert await over.process.wait() == 0


async def test_a_sweep_after_the_worker_was_killed_removes_the_folders(start_worker: StartWorker, place: Path) -> None:
    worker = await start_worker()
    worker.kill()

    report = await sweep(place / "scratch", lambda owner: False)

    assert report.removed == (worker.handle.sandbox_id,)
    assert nothing_runs(worker)
    assert list((place / "scratch").iterdir()) == list((place / "run").iterdir()) == []


async def test_an_attachment_lost_before_its_first_change_can_be_taken_again(place: Path, start_worker: StartWorker, kind: Kind) -> None:
    """The holder is killed before anything was run: the files are as INIT left them, and the next attempt may have them."""
    async with kind.open(place) as provider:
        first = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        await first.write_file("made", b"by init")
        handle = await first.park()
        lost = await provider.attach(handle, SandboxOwner(job_id="job", attempt=2, boot_id="b"))
        assert await lost.read_file("made") == b"by init"
        holder = SandboxFolder.open(Path(handle.folder)).state().holder
        assert holder is not None
        os.kill(holder.pid, signal.SIGKILL)
        await lost.wait_gone()

        async with await provider.attach(handle, SandboxOwner(job_id="job", attempt=3, boot_id="b")) as sandbox:
            assert await sandbox.read_file("made") == b"by init"


async def test_an_attachment_that_nobody_waits_for_may_lose_its_sandbox(place: Path, kind: Kind) -> None:
    """A job is cancelled while its worker attaches, and the sandbox is removed with it: its undoing has nothing to do, and no error."""
    there = asyncio.Event()
    async with kind.open(place) as provider:
        sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        assert isinstance(provider, LocalSandboxes)
        assert isinstance(sandbox, LocalSandbox)

        async def attach_late() -> LocalSandbox:
            await there.wait()
            return sandbox

        waits = asyncio.create_task(provider._finish_or_abandon(asyncio.create_task(attach_late()), parks=True))
        await asyncio.sleep(0)  # it begins to wait
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        for folder in (place / "scratch").iterdir():
            remove_tree(folder)
        there.set()  # and the end of the block raises what the undoing raised


async def test_a_worker_that_attaches_holds_what_another_parked(place: Path, start_worker: StartWorker, kind: Kind) -> None:
    async with kind.open(place) as provider:
        first = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="b"))
        handle = await first.park()

        worker = await start_worker("job", attempt=2, handle=handle)

        assert worker.handle == handle
        worker.kill()
        await wait_until(lambda: nothing_runs(worker), "the sandbox's processes are gone", timeout_s=2)
