"""A worker at a service that knows nothing of use and notices, or is busy without end when it is asked: its job goes on without the record.

Services are restarted after the jobs that they hold, workers when somebody upgrades them: the two versions meet on every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from pipeline.folders import make_private_folder
from workers.sandbox import SandboxHandle, SandboxOwner, SandboxSpec
from workers.sandbox.service import RemoteSandboxes
from workers.sandbox.service.peer import Peer
from workers.sandbox.service.server import SOCKET_NAME, TOKEN_NAME
from workers.sandbox.service.wire import CANCELLED, INVALID, VERSION, Message
from workers.sandbox.use import SandboxUse
from workers.stages.held_sandboxes import HeldSandboxes

OWNER = SandboxOwner(job_id="run:1", attempt=1, boot_id="boot")
HANDLE = SandboxHandle(backend="process", node="here", sandbox_id="0123456789-1-012345", folder="/nowhere", token="t")


class OlderService(Peer):
    """One connection of a service as it was before sandboxes told their use.

    Args:
        is_busy: it knows the question, and never answers it.
    """

    def __init__(self, *, is_busy: bool) -> None:
        super().__init__()
        self._is_busy = is_busy

    def on_message(self, message: Message) -> None:
        answers: dict[str, object] = {
            "start": {"handle": HANDLE.to_map(), "workdir": "/workspace"},
            "exec": {"returncode": 0, "stdout": b"", "stderr": b"", "timed_out": False, "truncated_bytes": 0, "took_s": 0.1},
            "park": HANDLE.to_map(),
            **dict.fromkeys(("stop", "kill", "settle")),
        }
        op = message.get("op")
        if "hello" in message:
            self.post({"hello": VERSION, "node": "here", "epoch": "e", "backend": "process", "isolation": ["none"]})
        elif op in answers:
            self.post({"id": message["id"], "ok": answers[op]})
        elif "cancel" in message:
            self.post({"id": message["cancel"], "error": {"kind": CANCELLED, "text": "the call was cancelled"}})
        elif not self._is_busy:
            self.post({"id": message["id"], "error": {"kind": INVALID, "text": f"unknown operation {op!r}"}})

    def on_bad_peer(self, why: str) -> None:
        raise AssertionError(why)

    def on_end(self) -> None: ...


@asynccontextmanager
async def older(place: Path, *, is_busy: bool = False) -> AsyncIterator[RemoteSandboxes]:
    run_dir = place / "run"
    make_private_folder(run_dir)
    (run_dir / TOKEN_NAME).write_text("token", encoding="ascii")
    service = await asyncio.get_running_loop().create_unix_server(partial(OlderService, is_busy=is_busy), str(run_dir / SOCKET_NAME))
    async with service, RemoteSandboxes(run_dir) as remote:
        yield remote


@pytest.mark.parametrize("is_busy", [False, True], ids=["knows it not", "busy"])
async def test_a_stage_does_without_the_use_of_its_sandbox(place: Path, is_busy: bool) -> None:
    async with older(place, is_busy=is_busy) as remote:
        held = HeldSandboxes(remote, lambda: None, use_s=0.05)
        sandbox = await held.start(SandboxSpec(), OWNER)
        result = await sandbox.exec("true", timeout_s=5)
        while_attached = await held.used()
        await sandbox.park()
        afterwards = await held.used()
        asked = await sandbox.use()

    assert (result.returncode, result.notices) == (0, ())
    assert (while_attached, afterwards, asked) == (None, None, SandboxUse())
