"""A guest that removes or replaces the programs that we start in its sandbox: each call ends at once, typed, and says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import Kind
from tests.integration.sandbox_walls.conftest import an_owner
from workers.sandbox import SandboxGone, SandboxProvider, SessionStartError

REPLACED = {
    "by another program": ("printf '#!/bin/cat\\n' >x; chmod 755 x; mv x {program}", "option"),
    "by nothing": ("rm {program}", "No such file"),
}
"""By how: what the guest does, and what is said of it."""


@pytest.mark.parametrize("how", REPLACED)
async def test_without_bash_nothing_hangs_and_what_runs_goes_on(provider: SandboxProvider, kind: Kind, place: Path, how: str) -> None:
    """The first process of a parked sandbox is the sandbox's own bash, so nobody attaches any more. That once counted as a failed start
    of the node: five guests could have made it degraded."""
    owner = an_owner()
    sandbox = await provider.start(kind.spec, owner)
    does, says = REPLACED[how]
    assert (await sandbox.shell().run(does.format(program="/usr/bin/bash"), timeout_s=10)).exit_code == 0

    result = await sandbox.exec("echo ran", timeout_s=10)
    with pytest.raises(SessionStartError, match=says):
        await sandbox.shell("another").run("echo ran", timeout_s=10)

    assert (result.returncode, result.stdout) != (0, b"ran\n")
    assert says in result.stderr_text
    assert (await sandbox.exec(["/bin/echo", "ran"], timeout_s=10)).stdout == b"ran\n"
    assert (await sandbox.shell().run("echo ran", timeout_s=10)).output == "ran\n"
    assert "bin" in [entry.name for entry in await sandbox.list("/")]
    snapshot = await sandbox.snapshot()
    with pytest.raises(SandboxGone, match="nothing starts over"):
        await provider.restore(snapshot, owner)
    handle = await sandbox.park()
    with pytest.raises(SandboxGone, match="nothing starts any more over"):
        await provider.attach(handle, owner)
    async with await provider.start(kind.spec, owner) as anew:
        assert (await anew.exec("echo ran", timeout_s=10)).stdout == b"ran\n"
    assert list((place / "scratch").iterdir()) == []


@pytest.mark.parametrize("how", ["by another program"])
async def test_without_python_the_kernel_says_so_and_the_rest_goes_on(provider: SandboxProvider, kind: Kind, how: str) -> None:
    does, says = REPLACED[how]
    async with await provider.start(kind.spec, an_owner()) as sandbox:
        await sandbox.exec(does.format(program="$(realpath /usr/bin/python3)"), timeout_s=10)

        with pytest.raises(SessionStartError, match=says):
            await sandbox.kernel().run("1", timeout_s=10)

        assert (await sandbox.shell().run("echo ran", timeout_s=10)).output == "ran\n"
