"""The setting `sandbox.entry`: what it may be asked of, and that a node whose backend is entered from inside says so by working."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from tests.contract.sandbox.kinds import Kind
from workers.sandbox import Isolation, SandboxOwner, SandboxSpec, SandboxStartError
from workers.sandbox.choice import choose_backend
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.network import NetworkRules
from workers.sandbox.process import ProcessBackend

OWNER = SandboxOwner(job_id="job", attempt=1, boot_id="boot")


async def test_a_backend_without_walls_has_no_inside(place: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no walls"):
        await choose_backend("process", scratch_dir=place / "scratch", run_dir=place / "run", entry="inside")

    sandboxes = LocalSandboxes(ProcessBackend(), scratch_dir=place / "scratch", run_dir=place / "run", node="here", entry="inside")
    async with sandboxes as provider:
        with pytest.raises(SandboxStartError, match=r"sandbox\.entry can only be outside") as caught:
            await provider.start(SandboxSpec(isolation=Isolation.NONE), OWNER)
    assert not caught.value.retryable


async def test_a_way_to_the_network_is_not_promised_where_it_cannot_be_opened(place: Path) -> None:
    with pytest.raises(InvalidRequest, match="no way to the network"):
        await choose_backend(
            "bubblewrap",
            scratch_dir=place / "scratch",
            run_dir=place / "run",
            network=NetworkRules.parse(["example.org"]),
            entry="inside",
        )


async def test_the_probe_goes_the_way_that_sandboxes_will(kind: Kind, place: Path) -> None:
    choice = await choose_backend("bubblewrap", scratch_dir=place / "scratch", run_dir=place / "run", entry="inside")

    assert choice.probes["bubblewrap"].works, choice.probes["bubblewrap"].why
    assert list((place / "run").iterdir()) == []


async def test_what_a_shell_runs_is_ended_and_the_shell_is_not(kind: Kind, provider: LocalSandboxes) -> None:
    """A substitution runs in the shell's own process group: what ends it must spare the shell, whose number inside is not the node's."""
    async with await provider.start(kind.spec, OWNER) as sandbox:
        shell = sandbox.shell()
        await shell.run("kept=yes", timeout_s=20)

        ended = await shell.run("trap '' INT QUIT; x=$(sleep 60)", timeout_s=0.2)

        assert (ended.status, ended.restarted) == ("timeout", False)
        assert (await shell.run("echo $kept", timeout_s=20)).output == "yes\n"


async def test_pid_1_is_the_server_or_the_keeper_as_was_asked(kind: Kind, provider: LocalSandboxes) -> None:
    async with await provider.start(kind.spec, OWNER) as sandbox:
        first = await sandbox.exec("cat /proc/1/comm", timeout_s=20)

        assert first.stdout == b"rs-server\n"
        assert (await sandbox.exec("echo $PPID", timeout_s=20)).stdout == b"1\n"
