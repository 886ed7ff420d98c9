"""What a sandbox had on disk, kept and begun from again. Rules 8 and 9 of `workers/sandbox/base.py`."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from tests.contract.sandbox.conftest import an_owner
from tests.contract.sandbox.kinds import Kind
from workers.sandbox import (
    Sandbox,
    SandboxGone,
    SandboxHandle,
    SandboxProvider,
    SandboxRefused,
    SandboxSpec,
    Snapshot,
    StaleAttempt,
)

JOB = an_owner("job")


async def sh(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(command, timeout_s=20)
    assert result.returncode == 0, result.stderr_text
    return result.stdout_text


async def test_many_begin_from_one_moment_and_none_sees_another(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A search in a tree: the parent goes on, its children begin where it was, and each goes its own way."""
    async with await provider.start(spec, JOB) as parent:
        await sh(parent, "mkdir -p src; echo one >src/a; ln src/a src/b; ln -s a src/link; echo kept >$TMPDIR/t")
        snapshot = Snapshot.from_map(msgpack.unpackb(msgpack.packb((await parent.snapshot()).to_map())))
        await sh(parent, "echo two >src/a; rm src/link; echo new >src/new")

        children = await asyncio.gather(*(provider.restore(snapshot, JOB) for _ in range(3)))

        for number, child in enumerate(children):
            assert await sh(child, "cat src/a; readlink src/link; cat $TMPDIR/t; ls src") == "one\na\nkept\na\nb\nlink\n"
            assert await sh(child, f"echo child{number} >src/a; cat src/b") == f"child{number}\n"
        assert [await sh(child, "cat src/a") for child in children] == [f"child{number}\n" for number in range(3)]
        assert await sh(parent, "cat src/a src/new") == "two\nnew\n"
        await asyncio.gather(*(child.stop() for child in children))


async def test_shells_and_jobs_of_the_parent_go_on_as_if_nothing_had_been(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A shell with job control that saw its child stop would take the terminal back and answer early."""
    async with await provider.start(spec, JOB) as sandbox:
        shell = sandbox.shell()
        await shell.run("VAR=kept; mkfifo gate; sleep 300 & kill -STOP $!; wait_for=$!", timeout_s=10)
        command = asyncio.create_task(shell.run("echo begun >begun; cat gate; echo $VAR; jobs", timeout_s=30))
        await wait_for_file(sandbox, "begun")

        await sandbox.snapshot()
        await sh(sandbox, "echo through >gate")

        result = await command
        assert (result.status, result.exit_code) == ("ok", 0)
        assert re.search(r"^through\n(.*\n)*kept\n.*Stopped +sleep 300$", result.output.strip())  # what had stopped by itself stays stopped


async def wait_for_file(sandbox: Sandbox, path: str) -> None:
    await sh(sandbox, f"until [ -s {path} ]; do sleep 0.01; done")


async def test_a_snapshot_is_of_one_moment(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A writer goes round its files; of a copy that was made while it runs, the files would be of different rounds. The storms beside it
    have always somebody who is not stopped yet, and parents that cannot be before their child has become another program."""
    write = "i=0; while :; do i=$((i+1)); for f in $(seq 40); do echo $i >w/$f; done; done"
    storms = "(while :; do (:) & wait; done) & python3 storm.py &"
    async with await provider.start(spec, JOB) as sandbox:
        await sandbox.write_file("storm.py", b"import subprocess\nwhile True:\n    subprocess.run(['true'])\n")
        await sh(sandbox, f"mkdir w; exec >/dev/null 2>&1; ({write}) & {storms} until [ -s w/40 ]; do sleep 0.01; done")

        snapshot = await sandbox.snapshot()
        async with await provider.restore(snapshot, JOB) as restored:
            texts = (await sh(restored, "for f in $(seq 40); do echo $(cat w/$f); done")).split("\n")[:40]

        rounds = [int(text) for text in texts if text]
        assert len(rounds) >= 39, texts  # the one that is being written may be empty
        assert rounds == sorted(rounds, reverse=True), texts
        assert rounds[0] - rounds[-1] <= 1, texts
        before = await sandbox.read_file("w/1")
        await sh(sandbox, f'until [ "$(cat w/1)" != {before.decode().strip() or 0} ]; do sleep 0.01; done')  # they go on


async def test_what_was_removed_of_the_image_stays_removed(walled: Kind, provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Removed files are device nodes in the layer, a folder made anew hides the image's by an attribute: a copy without either brings back
    what the agent had deleted."""
    async with await provider.start(spec, JOB) as parent:
        assert await sh(parent, 'test -e /etc/passwd && test -n "$(ls -A /etc/skel)" && echo there') == "there\n"
        await sh(
            parent,
            "rm /etc/passwd; rm -rf /etc/skel; mkdir /etc/skel; echo mine >/etc/skel/mine; mv /usr/bin/env /usr/bin/env2",
        )
        snapshot = await parent.snapshot()

        async with await provider.restore(snapshot, JOB) as child:
            seen = await sh(child, "test ! -e /etc/passwd && ls -A /etc/skel && test ! -e /usr/bin/env && env2 echo ran")
            assert seen == "mine\nran\n"
            again = await child.snapshot()
            handle = await child.park()

        async with await provider.restore(again, JOB) as grandchild, await provider.attach(handle, JOB) as attached:
            for sandbox in (grandchild, attached):
                assert await sh(sandbox, "test ! -e /etc/passwd && ls -A /etc/skel") == "mine\n"


async def test_a_snapshot_is_its_job_s_and_no_earlier_attempt_s(provider: SandboxProvider, spec: SandboxSpec) -> None:
    async with await provider.start(spec, an_owner("job", attempt=2)) as sandbox:
        snapshot = await sandbox.snapshot()
        as_handle = SandboxHandle.from_map({**snapshot.to_map(), "sandbox_id": snapshot.snapshot_id})
        of_sandbox = Snapshot.from_map({**sandbox.handle.to_map(), "snapshot_id": sandbox.handle.sandbox_id})

        for snap, owner, error in (
            (snapshot, an_owner("other", attempt=2), SandboxRefused),
            (replace(snapshot, token="0" * 32), an_owner("job", attempt=2), SandboxRefused),
            (of_sandbox, an_owner("job", attempt=2), SandboxRefused),
            (snapshot, an_owner("job", attempt=1), StaleAttempt),
            (replace(snapshot, folder="/etc"), an_owner("job", attempt=2), SandboxGone),
            (replace(snapshot, node="elsewhere"), an_owner("job", attempt=2), SandboxGone),
        ):
            with pytest.raises(error):
                await provider.restore(snap, owner)
        with pytest.raises(SandboxRefused, match="snapshot"):
            await provider.attach(as_handle, an_owner("job", attempt=2))
    assert snapshot.token not in repr(snapshot)


async def test_a_later_attempt_goes_on_from_it_and_a_plain_start_ends_it(provider: SandboxProvider, spec: SandboxSpec, place: Path) -> None:
    """Going back to turn k after a failure; and what earlier attempts still have ends, as with any start."""
    first = await provider.start(spec, an_owner("job", attempt=1))
    await sh(first, "echo k >turn")
    snapshot = await first.snapshot()

    async with await provider.restore(snapshot, an_owner("job", attempt=2)) as second:
        assert await sh(second, "cat turn") == "k\n"
        assert re.search("ended|stopped|killed|held", await first.wait_gone())
        async with await provider.restore(snapshot, an_owner("job", attempt=2)) as sibling:
            assert await sh(sibling, "cat turn") == await sh(second, "cat turn")
        with pytest.raises(StaleAttempt):
            await provider.restore(snapshot, an_owner("job", attempt=1))

    async with await provider.start(spec, an_owner("job", attempt=3)):
        with pytest.raises(SandboxGone):
            await provider.restore(snapshot, an_owner("job", attempt=3))
    assert list((place / "scratch").iterdir()) == []
