"""The life of a sandbox: made, parked, taken over, fenced, ended. The rules stand in `workers/sandbox/base.py`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from tests.contract.sandbox.conftest import an_owner
from workers.sandbox import (
    ImageMissing,
    Isolation,
    SandboxBusy,
    SandboxGone,
    SandboxHandle,
    SandboxProvider,
    SandboxRefused,
    SandboxSpec,
    SandboxStartError,
    StaleAttempt,
)


def files_below(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for folder in ("scratch", "run") for path in (place / folder).iterdir())


async def test_the_backend_works_here(provider: SandboxProvider, place: Path) -> None:
    probe = await provider.probe()

    assert (probe.works, probe.why) == (True, "")
    assert files_below(place) == []


async def test_files_go_from_init_to_run_by_a_handle_that_is_data(provider: SandboxProvider, spec: SandboxSpec) -> None:
    first = await provider.start(spec, an_owner("job"))
    await first.exec("echo made >made; sleep 60 &", timeout_s=10)
    handle = await first.park()

    wire = msgpack.packb(handle.to_map())
    second = await provider.attach(SandboxHandle.from_map(msgpack.unpackb(wire)), an_owner("job", attempt=2))

    async with second:
        assert await second.read_file("made") == b"made\n"
        assert (await second.exec("cat made", timeout_s=10)).stdout == b"made\n"
        assert second.workdir == first.workdir


async def test_the_spec_of_the_start_holds_for_attachments_too(provider: SandboxProvider, spec: SandboxSpec) -> None:
    wanted = replace(spec, env={"TASK": "math"}, limits=replace(spec.limits, open_files=300))
    handle = await (await provider.start(wanted, an_owner("job"))).park()

    async with await provider.attach(handle, an_owner("job", attempt=2)) as sandbox:
        result = await sandbox.exec("echo $TASK; ulimit -n", timeout_s=10)

    assert result.stdout == b"math\n300\n"


async def test_the_token_is_not_in_what_is_logged(provider: SandboxProvider, spec: SandboxSpec) -> None:
    async with await provider.start(spec, an_owner()) as sandbox:
        assert sandbox.handle.token not in repr(sandbox.handle)


async def test_stop_leaves_nothing(provider: SandboxProvider, place: Path, spec: SandboxSpec) -> None:
    sandbox = await provider.start(spec, an_owner())
    await sandbox.shell().run("sleep 60 & mkdir x; chmod 000 x", timeout_s=10)
    await sandbox.kernel().run("1", timeout_s=20)

    await sandbox.stop()

    assert files_below(place) == []
    for call in (sandbox.exec("true", timeout_s=5), sandbox.shell().run("true", timeout_s=5), sandbox.kernel().run("1", timeout_s=5)):
        with pytest.raises(SandboxGone):
            await call
    with pytest.raises(SandboxGone):
        await sandbox.read_file("x")
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.handle, an_owner(attempt=2))


async def test_stopping_twice_and_after_the_end_is_harmless(provider: SandboxProvider, spec: SandboxSpec) -> None:
    sandbox = await provider.start(spec, an_owner())

    await asyncio.gather(sandbox.stop(), sandbox.kill())
    await sandbox.stop()

    assert "stopped" in await sandbox.wait_gone()


async def test_what_waits_when_the_sandbox_is_killed_is_told(provider: SandboxProvider, spec: SandboxSpec) -> None:
    sandbox = await provider.start(spec, an_owner())
    await sandbox.shell().run("true", timeout_s=10)
    await sandbox.kernel().run("1", timeout_s=20)
    calls = [
        asyncio.create_task(sandbox.exec("sleep 60", timeout_s=60)),
        asyncio.create_task(sandbox.shell().run("sleep 60", timeout_s=60)),
        asyncio.create_task(sandbox.kernel().run("import time; time.sleep(60)", timeout_s=60)),
    ]
    await sandbox.exec("true", timeout_s=10)

    await sandbox.kill()

    command, shell, kernel = await asyncio.gather(*calls, return_exceptions=True)
    # bash may live a moment longer than its command and say "Killed", as if the command had ended by itself
    assert isinstance(command, SandboxGone)
    assert isinstance(shell, SandboxGone) or getattr(shell, "status", "ok") != "ok"
    assert isinstance(kernel, SandboxGone) or getattr(kernel, "status", "ok") != "ok"


async def test_only_one_attachment_lives_at_a_time(provider: SandboxProvider, spec: SandboxSpec) -> None:
    async with await provider.start(spec, an_owner("job")) as sandbox:
        with pytest.raises(SandboxBusy):
            await provider.attach(sandbox.handle, an_owner("job", attempt=2))


async def test_a_later_attempt_fences_off_earlier_ones_also_by_a_try(provider: SandboxProvider, spec: SandboxSpec) -> None:
    sandbox = await provider.start(spec, an_owner("job", attempt=1))
    with pytest.raises(SandboxBusy):
        await provider.attach(sandbox.handle, an_owner("job", attempt=5))
    handle = await sandbox.park()

    with pytest.raises(StaleAttempt):
        await provider.attach(handle, an_owner("job", attempt=4))

    async with await provider.attach(handle, an_owner("job", attempt=5)) as later:
        assert (await later.exec("true", timeout_s=10)).returncode == 0


async def test_a_stranger_is_refused(provider: SandboxProvider, spec: SandboxSpec) -> None:
    handle = await (await provider.start(spec, an_owner("job"))).park()

    with pytest.raises(SandboxRefused, match="wrong token"):
        await provider.attach(replace(handle, token="0" * 32), an_owner("job", attempt=2))
    with pytest.raises(SandboxRefused, match="belongs to job"):
        await provider.attach(handle, an_owner("other", attempt=2))


@pytest.mark.parametrize(
    "change", [{"node": "elsewhere"}, {"backend": "other"}, {"sandbox_id": "../x"}, {"sandbox_id": ".."}, {"folder": "/etc"}]
)
async def test_a_handle_of_elsewhere_is_gone(provider: SandboxProvider, change: dict[str, str], spec: SandboxSpec) -> None:
    async with await provider.start(spec, an_owner("job")) as sandbox:
        with pytest.raises(SandboxGone):
            await provider.attach(replace(sandbox.handle, **change), an_owner("job", attempt=2))


async def test_a_handle_that_names_the_folder_above_is_gone(provider: SandboxProvider, place: Path, spec: SandboxSpec) -> None:
    """Whoever can write to Redis and to the folder above (`/tmp`, by default) made one up that passed: that folder's `owner.json` then
    said which folder is the sandbox's own, to be deleted with it."""
    treasure = place / "treasure"
    treasure.mkdir()
    async with await provider.start(spec, an_owner("job")) as sandbox:
        for name in ("owner.json", "spec.json", "state.json", "lock", "lease"):
            (place / name).write_bytes((Path(sandbox.handle.folder) / name).read_bytes())
        owner = json.loads((place / "owner.json").read_bytes())
        (place / "owner.json").write_text(json.dumps({**owner, "run_folder": str(treasure)}))
        forged = replace(sandbox.handle, sandbox_id="..", folder=sandbox.handle.folder.replace(sandbox.handle.sandbox_id, ".."))

        with pytest.raises(SandboxGone):
            await provider.attach(forged, an_owner("job", attempt=2))

    assert treasure.exists()


async def test_a_new_start_ends_what_an_earlier_attempt_left(provider: SandboxProvider, place: Path, spec: SandboxSpec) -> None:
    old = await provider.start(spec, an_owner("job", attempt=1))
    other = await provider.start(spec, an_owner("job-2", attempt=1))

    async with await provider.start(spec, an_owner("job", attempt=2)):
        with pytest.raises(SandboxGone):
            await old.exec("true", timeout_s=5)
        assert (await other.exec("true", timeout_s=10)).returncode == 0
        with pytest.raises(StaleAttempt):
            await provider.start(spec, an_owner("job", attempt=1))

    await other.stop()
    assert files_below(place) == []


async def test_isolation_that_is_not_there_is_refused_before_anything_is_made(provider: SandboxProvider, place: Path) -> None:
    offered = (await provider.probe()).isolation
    for isolation in set(Isolation) - offered:
        with pytest.raises(SandboxStartError) as caught:
            await provider.start(SandboxSpec(isolation=isolation), an_owner())
        assert not caught.value.retryable

    assert files_below(place) == []


async def test_an_unknown_image_is_refused(provider: SandboxProvider, spec: SandboxSpec) -> None:
    with pytest.raises((SandboxStartError, ImageMissing)):
        await provider.start(replace(spec, image="no/such:image"), an_owner())


@pytest.mark.slow
async def test_a_cancelled_start_leaves_nothing(provider: SandboxProvider, place: Path, spec: SandboxSpec) -> None:
    """Cancelled at many moments of its way: whatever was there by then is gone when the provider closes."""
    for steps in range(0, 60, 3):
        start = asyncio.create_task(provider.start(spec, an_owner()))
        for _ in range(steps):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)

    await provider.close()

    assert files_below(place) == []


async def test_close_ends_what_is_still_attached(provider: SandboxProvider, place: Path, spec: SandboxSpec) -> None:
    sandbox = await provider.start(spec, an_owner())

    await provider.close()

    assert files_below(place) == []
    assert await sandbox.wait_gone()


@pytest.mark.slow
async def test_eight_at_once_all_start(provider: SandboxProvider, spec: SandboxSpec) -> None:
    sandboxes = await asyncio.gather(*(provider.start(spec, an_owner()) for _ in range(8)))

    results = await asyncio.gather(*(sandbox.shell().run("echo hi", timeout_s=30) for sandbox in sandboxes))

    assert [result.output for result in results] == ["hi\n"] * 8
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
