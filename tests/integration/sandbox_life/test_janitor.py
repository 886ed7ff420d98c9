"""What lies about and nobody can need is found and ended; what anybody may need is left alone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from pathlib import Path

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import PLAIN, WORKER, an_owner, ignored, left, moody, settings
from workers.sandbox import SandboxLeak
from workers.sandbox.images.node_store import NodeStore
from workers.sandbox.local.environment import MARK
from workers.sandbox.local.folder import SandboxFolder, sandbox_paths
from workers.sandbox.local.identity import identify
from workers.sandbox.local.sandbox import LocalSandbox
from workers.sandbox.service import NodeSandboxes


def age(path: Path) -> Path:
    os.utime(path, (0, 0))
    return path


async def test_attached_and_parked_sandboxes_are_left_alone(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        attached = await node.start(PLAIN, an_owner("attached"), WORKER, ignored)
        await attached.sandbox.write_file("file", b"changed")
        parked = await node.start(PLAIN, an_owner("parked"), WORKER, ignored)
        handle = await parked.sandbox.park()

        tidied = await node.tidy()

        assert (tidied.ended, tidied.failed, tidied.folders) == ((), {}, 0)
        assert await attached.sandbox.read_file("file") == b"changed"
        await (await node.attach(handle, an_owner("parked", attempt=2), WORKER, ignored)).sandbox.stop()
        await attached.sandbox.stop()


async def test_one_that_is_just_being_parked_is_left_alone(place: Path) -> None:
    """Between the end of its processes and the word that it is parked it looks as if its attachment had been lost."""
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        attached = await node.start(PLAIN, an_owner("job"), WORKER, ignored)
        sandbox = attached.sandbox
        assert isinstance(sandbox, LocalSandbox)
        await sandbox.write_file("file", b"by init")
        with sandbox.folder.held():  # so that parking stops in between, before its word
            parking = asyncio.create_task(sandbox.park())
            await sandbox.wait_gone()
            assert provider.holds(sandbox.handle.sandbox_id)
        handle = await parking

        assert (await node.tidy()).ended == ()
        assert not provider.holds(handle.sandbox_id)
        again = (await node.attach(handle, an_owner("job", attempt=2), WORKER, ignored)).sandbox
        assert await again.read_file("file") == b"by init"
        await again.stop()


async def test_what_a_dead_extraction_left_of_an_image_goes_too(place: Path) -> None:
    """It is as large as its image, and only `rollstream image prune` found it."""
    provider, _ = moody(place)
    store = NodeStore(place / "images")
    store.open()
    dead, made, trash = (store.folder / name for name in (f".new-{'a' * 64}", f".new-{'b' * 64}", f".trash-{'c' * 64}-01234567"))
    for folder in (dead, made, trash):
        (folder / "rootfs").mkdir(parents=True)
    async with provider, NodeSandboxes(provider, settings(), sweep_images=store.sweep) as node:
        with (store.folder / ".locks" / ("b" * 64)).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as who is making it does

            tidied = await node.tidy()

            assert tidied.folders == 2
            assert [path.name for path in store.folder.iterdir() if path.name != ".locks"] == [made.name]


async def test_an_image_store_that_cannot_be_read_keeps_the_janitor_from_nothing(place: Path) -> None:
    provider, _ = moody(place)
    store = NodeStore(place / "images")  # and there is no such folder
    async with provider, NodeSandboxes(provider, settings(), sweep_images=store.sweep) as node:
        (place / "run" / "0123456789-1-abcdef").mkdir()

        assert (await node.tidy()).folders == 1


async def test_one_that_was_lost_goes_with_the_next_round(place: Path) -> None:
    """Nobody holds it, and nobody asks for it again: its connection was never bound to it, or its worker does not clean up."""
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        sandbox = await provider.start(PLAIN, an_owner("job"))
        await sandbox.write_file("file", b"changed")
        holder = sandbox.folder.state().holder
        assert holder is not None
        os.kill(holder.pid, signal.SIGKILL)
        await sandbox.wait_gone()
        await wait_until(lambda: not provider.holds(sandbox.handle.sandbox_id), "it is nobody's")

        tidied = await node.tidy()

        assert tidied.ended == (sandbox.handle.sandbox_id,)
        assert left(place) == []


async def test_the_janitor_comes_by_itself(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings(janitor_s=0.05)):
        (place / "run" / "0123456789-1-abcdef").mkdir()

        await wait_until(lambda: left(place) == [], "sockets of no sandbox are gone")


async def test_half_made_folders_and_sockets_of_nobody_go_and_strangers_stay(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        scratch, run = place / "scratch", place / "run"
        for name in (".new-0123456789-1-aaaaaa", ".new-0123456789-1-bbbbbb", ".trash-0123456789-1-cccccc", "notes"):
            (scratch / name).mkdir()
        age(scratch / ".new-0123456789-1-aaaaaa")  # the other may be in the making
        for name in ("0123456789-1-abcdef", "s", "p1234", "p5678"):
            (run / name).mkdir()
        age(run / "p1234")  # the other belongs to a probe that runs

        tidied = await node.tidy()

        assert tidied.folders == 2
        assert left(place) == sorted([".new-0123456789-1-bbbbbb", "notes", "p5678", "s"])


async def test_what_a_killed_probe_left_goes_at_once_and_one_that_runs_is_left_alone(place: Path) -> None:
    """It stayed for ten minutes: nothing said whether who had made it was still at it."""
    ended = await asyncio.create_subprocess_exec("sleep", "600")
    owners = {"pabcd": identify(ended.pid), "p1234": identify(os.getpid())}
    ended.kill()
    await ended.wait()
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        for word, owner in owners.items():
            assert owner is not None
            (place / f".{word}").mkdir()
            (place / f".{word}" / "owner").write_text(f"{owner.pid} {owner.started}\n")
            (place / "run" / word).mkdir()
        (place / ".probe-abc").mkdir()
        age(place / ".probe-abc")

        tidied = await node.tidy()

        assert tidied.folders == 3
        assert [name for name in os.listdir(place) if name.startswith(".")] == [".p1234"]
        assert left(place) == ["p1234"]


async def test_at_start_whatever_an_earlier_service_left_goes(place: Path) -> None:
    """Its parked sandboxes too: their handles name its epoch."""
    provider, _ = moody(place)
    async with provider:
        sandbox = await provider.start(PLAIN, an_owner("job"))
        await sandbox.park()
        (place / "scratch" / ".new-0123456789-1-bbbbbb").mkdir()
    later, _ = moody(place)

    async with later:
        node = NodeSandboxes(later, settings())
        await node.sweep_earlier()

        assert left(place) == []


async def test_a_record_that_a_power_failure_emptied_is_no_reason_to_stay(place: Path) -> None:
    """Files that were written and never reached the disk are empty after it: such a folder can name neither its owner nor its boot."""
    provider, _ = moody(place)
    async with provider:
        sandbox = await provider.start(PLAIN, an_owner("job"))
        await sandbox.park()
        [path] = sandbox_paths(place / "scratch")
        for name in ("owner.json", "state.json", "spec.json"):
            (path / name).write_bytes(b"")

        tidied = await NodeSandboxes(provider, settings()).tidy()

        assert tidied.ended == (path.name,)
        assert left(place) == []


async def test_processes_of_another_boot_are_not_mistaken_for_ours(place: Path) -> None:
    """Numbers of processes begin anew with the machine: the holder on record may be anybody by now."""
    provider, _ = moody(place)
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        async with provider:
            sandbox = await provider.start(PLAIN, an_owner("job"))
            await sandbox.park()
            who = identify(bystander.pid)
            assert who is not None
            path = sandbox.folder.path
            (path / "children").write_text(f"{who.pid} {who.started}\n")
            (path / "state.json").write_text(json.dumps({"seen_attempt": 1, "holder_pid": who.pid, "holder_started": who.started}))
            record = json.loads((path / "owner.json").read_text())
            (path / "owner.json").write_text(json.dumps({**record, "machine_boot": "another"}))

            assert (await NodeSandboxes(provider, settings()).tidy()).ended == (path.name,)

        assert identify(bystander.pid) == who
        assert left(place) == []
    finally:
        bystander.kill()
        await bystander.wait()


async def test_an_end_that_is_not_proven_degrades_the_node_until_the_janitor_has_proven_it(place: Path) -> None:
    """A process of it hangs in the kernel. The node takes no more work, and is well again by itself when the process is gone."""
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        attached = await node.start(PLAIN, an_owner("job"), WORKER, ignored)
        sandbox_id = attached.sandbox.handle.sandbox_id
        node.note_leak(SandboxLeak(sandbox_id, (7,)))
        await attached.sandbox.kill()
        assert sandbox_id in node.health.degraded

        await node.tidy()

        assert node.health.degraded == ""


async def test_a_marked_process_that_nobody_recorded_is_ended_with_its_sandbox(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        sandbox = await provider.start(PLAIN, an_owner("job"))
        await sandbox.park()
        stray = await asyncio.create_subprocess_exec("sleep", "600", env={MARK: sandbox.handle.sandbox_id})
        SandboxFolder.open(sandbox.folder.path).change_state(ended=True)

        await node.tidy()

        assert await stray.wait() == -signal.SIGKILL
        assert left(place) == []
