"""Launchers of nodes as real processes, each in folders of its own: a machine of its own, as far as they can see."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from ops.child_processes import log_tail
from ops.node.files import FOLDER
from ops.node.reading import NodeView, read_node
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until

ROOT = Path(__file__).resolve().parents[3]
START_S = 90.0
"""Six interpreters on a machine that does other things, too."""
SMALL = ("--init", "1", "--run", "2", "--eval", "1", "--no-supervisor")


@dataclass(slots=True)
class Machine:
    """Folders of one machine, and the launchers that were started there."""

    folder: Path
    queue: QueueSettings
    environment: dict[str, str] = field(default_factory=dict)
    launchers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a launcher of node `n1`, with more environment settings, and does not wait for it."""
        folders = {f"ROLLSTREAM_{name.upper()}_DIR": str(self.folder / name) for name in ("run", "data", "scratch", "state")}
        own = {
            "ROLLSTREAM_REDIS_URL": self.queue.redis_url,
            "ROLLSTREAM_NAMESPACE": self.queue.namespace,
            "ROLLSTREAM_SANDBOX_BACKEND": "process",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLSTREAM_")}
        with self.log.open("ab") as out:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", "node", "run", "--node", "n1", *arguments],
                cwd=ROOT,
                env={**kept, **folders, **own, **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.launchers.append(launcher)
        return launcher

    @property
    def log(self) -> Path:
        return self.folder / "launcher.log"

    @property
    def notes(self) -> Path:
        """Where launchers note what they started."""
        return self.folder / "run" / FOLDER

    def processes(self) -> list[psutil.Process]:
        """All that know these folders, launchers not counted."""
        found = []
        launchers = {launcher.pid for launcher in self.launchers}
        for process in psutil.process_iter():
            try:
                is_ours = process.pid not in launchers and process.environ().get("ROLLSTREAM_RUN_DIR") == str(self.folder / "run")
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    async def ended(self, launcher: subprocess.Popen[bytes]) -> int:
        """The exit code, once it is there."""
        await wait_until(lambda: launcher.poll() is not None, f"the launcher has ended: {log_tail(self.log)}", timeout_s=START_S)
        assert launcher.returncode is not None
        return launcher.returncode


@pytest.fixture
def make_machine(settings: QueueSettings) -> Iterator[Callable[[], Machine]]:
    """Machines; nothing runs there afterwards."""
    with ExitStack() as stack:

        def make() -> Machine:
            folder = Path(tempfile.mkdtemp(prefix="rsn-", dir="/tmp"))
            machine = Machine(folder, settings)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(_end, machine)
            return machine

        yield make


def _end(machine: Machine) -> None:
    for launcher in machine.launchers:
        launcher.kill()
        launcher.wait()
    for process in machine.processes():
        try:
            process.kill()
            process.wait(10)
        except psutil.Error:
            continue


@pytest.fixture
def machine(make_machine: Callable[[], Machine]) -> Machine:
    return make_machine()


@pytest.fixture
def look(client: AsyncClient, settings: QueueSettings) -> Callable[[], object]:
    """Reads node `n1` as people do."""

    async def read() -> NodeView | None:
        return await read_node(client, settings, "n1")

    return read
