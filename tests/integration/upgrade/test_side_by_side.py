"""Two versions serve one queue together: an upgrade process by process, and the way back (docs/how-to/upgrading.md).

The other version is an older commit of this repository, unpacked into a folder: its workers, supervisor and trainer run as processes with
their own code. It calls itself `OLD_VERSION`, so that what is said of versions can be seen.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import pytest

from ops.child_processes import Child, ChildProcesses, log_tail
from ops.status.look import look_and_judge
from ops.status.verdict import Verdict
from ops.status.view import as_lines
from pipeline.messages import Outcome, Stage
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import PrivateServer, wait_until
from tests.e2e.conftest import ROOT
from tests.integration.stages.fleet import TASK
from trainer_client import JobRequest, StepRequest, connect
from trainer_client.client import Run

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(240)]
OLD = "2a2f35fa9722b7c515cf21cfa56a58cf435993b2"
"""The version before. Moved at each release: two versions work together, more were never promised."""
OLD_VERSION = "0.0.9"
NEEDED = ("pipeline", "workers", "trainer_client", "ops", "tests/faults", "tests/integration/stages")
PATIENCE_S = 60.0
JOBS = 12
OLD_TRAINER = """
import asyncio
from pipeline.settings import QueueSettings
from trainer_client import JobRequest, StepRequest, connect

async def main():
    async with connect(QueueSettings.load(), run="theirs") as run:
        jobs = await run.submit([JobRequest(task="play", prompt={"seconds": 0.05}, id=f"j{i}") for i in range(6)])
        ended = [result async for result in run.results(jobs, timeout_s=60)]
        assert {str(result.outcome) for result in ended} == {"ok"}
        await run.ack(ended)
        run.feed([{"seconds": 0.05} for _ in range(8)])
        prompts = []
        async for step in run.steps(StepRequest(task="play", groups=2, n=2, policy="every"), timeout_s=60):
            prompts += [group.prompt_id for group in step.groups]
            await step.ack()
        assert sorted(prompts) == sorted(f"e0-{i}" for i in range(8)), prompts

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of the version before."""
    archive = subprocess.run(["git", "archive", OLD, *NEEDED], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no history with commit {OLD[:8]} here: {archive.stderr.decode()[:200]}")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    metadata = folder / f"rollstream-{OLD_VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: rollstream\nVersion: {OLD_VERSION}\n")
    return folder


class Site:
    """Processes of both versions at one queue.

    Args:
        old: folder with the other version's code.
    """

    def __init__(self, settings: QueueSettings, children: ChildProcesses, old: Path, folder: Path) -> None:
        self.settings = settings
        self.diary = folder / "diary"
        self._children = children
        self._code = {"old": old, "new": ROOT}
        self._folder = folder

    def workers(self, which: str) -> list[Child]:
        """One of each stage, with the code of the old or the new version."""
        return [self.worker(which, stage) for stage in Stage]

    def worker(self, which: str, stage: Stage) -> Child:
        """One of them; again under the same name, once the one before has ended."""
        words = (stage.value, which, "4", str(self._folder / f"scratch-{which}"), str(self.diary))
        return self._start(which, f"{which}-{stage.value}", "tests.faults.playing_worker", *words)

    def supervisor(self, which: str) -> Child:
        """A supervisor."""
        return self._start(which, f"{which}-supervisor", "ops.cli", "supervisor", "run", "--name", which)

    def trainer(self, which: str, program: str) -> Child:
        """A trainer."""
        command = [sys.executable, "-c", program]
        return self._children.start_command(f"{which}-trainer", command, cwd=self._code[which], environment=self._where(which))

    async def drained(self, children: Sequence[Child]) -> None:
        """They are told to end, and end well."""
        for child in children:
            child.asked_to_stop = True
            child.process.terminate()
        for child in children:
            await self.ended(child)

    async def ended(self, child: Child) -> None:
        """It has ended well."""
        child.asked_to_stop = True
        await wait_until(lambda: child.exit_code is not None, f"{child.name} ends", timeout_s=PATIENCE_S)
        assert child.exit_code == 0, log_tail(child.log)

    def ran(self) -> set[int]:
        """Processes that carried a job through RUN."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        return {int(line.split()[3]) for line in lines if line.startswith("end ")}

    async def versions(self) -> tuple[Verdict, str]:
        """What status says, and its line of versions."""
        judgement, facts = await look_and_judge(self.settings, patience_s=PATIENCE_S)
        assert facts is not None, judgement.first_line
        return judgement.verdict, next((line for line in as_lines(judgement, facts) if line.startswith("versions ")), "")

    def _start(self, which: str, name: str, module: str, *arguments: str) -> Child:
        command = [sys.executable, "-m", module, *arguments]
        return self._children.start_command(name, command, cwd=self._code[which], environment=self._where(which))

    def _where(self, which: str) -> dict[str, str]:
        # the folder comes before the installed package, and so does the version that it calls itself
        return {"PYTHONPATH": os.fspath(self._code[which])}


@pytest.fixture
def site(make_server: Callable[..., PrivateServer], old_code: Path, tmp_path: Path) -> Iterator[Site]:
    server = make_server(persistence="always")
    settings = QueueSettings(redis_url=server.url, lease_s=5.0, retry_backoff_s=0.05)
    environment = {"ROLLSTREAM_REDIS_URL": server.url, "ROLLSTREAM_LEASE_S": "5", "ROLLSTREAM_RETRY_BACKOFF_S": "0.05"}
    with ChildProcesses(tmp_path, environment) as children:
        yield Site(settings, children, old_code, tmp_path)


async def carried_through(run: Run, name: str, *, jobs: int = JOBS) -> None:
    """Single jobs end, each once and well."""
    handles = await run.submit([JobRequest(task=TASK, prompt={"seconds": 0.05}, id=f"{name}{i}") for i in range(jobs)])
    results = [result async for result in run.results(handles, timeout_s=PATIENCE_S)]
    assert sorted(result.job for result in results) == sorted(job.id for job in handles)
    assert {result.outcome for result in results} == {Outcome.OK}
    for result in results:
        await result.trajectory()
    await run.ack(results)


async def test_an_upgrade_process_by_process_loses_nothing_and_goes_back(site: Site) -> None:
    """Workers first, then the supervisor, then the trainer; and a worker back, as after an upgrade that was regretted. A trainer of the old
    version works with what is mixed."""
    old, old_supervisor = site.workers("old"), site.supervisor("old")
    async with connect(site.settings, run="ours") as run:
        await carried_through(run, "before")
        assert await site.versions() == (Verdict.HEALTHY, "")
        run.feed([{"seconds": 0.05} for _ in range(16)])
        prompts: list[str] = []
        steps = run.steps(StepRequest(task=TASK, groups=2, n=2, policy="every"), timeout_s=PATIENCE_S)

        async def take() -> None:
            step = await anext(steps)
            prompts.extend(group.prompt_id for group in step.groups)
            await step.ack()

        await take()
        new = site.workers("new")
        run_pids = {child.process.pid for child in (old[1], new[1])}

        async def is_mixed() -> bool:
            return (await site.versions())[1] == f"versions {OLD_VERSION}: 3 workers, 0.1.0: 3 workers"

        await wait_until(is_mixed, "status says that two versions work", timeout_s=PATIENCE_S)
        theirs = site.trainer("old", OLD_TRAINER)
        number = 0
        while not run_pids <= site.ran():
            await carried_through(run, f"mixed{number}-")
            number += 1
        await take()
        await site.ended(theirs)

        await site.drained(old)
        await take()
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Supervisor(site.settings, name="new", period_s=0.2).run(stop), name="supervisor")
            await site.drained([old_supervisor])
            await take()
            await carried_through(run, "after")
            assert await site.versions() == (Verdict.HEALTHY, "")

            back = site.worker("old", Stage.RUN)
            await site.drained([new[list(Stage).index(Stage.RUN)]])
            async for step in steps:
                prompts += [group.prompt_id for group in step.groups]
                await step.ack()
            assert back.process.pid in site.ran()
            stop.set()
    await site.drained([*(child for child in new if child.exit_code is None), back])

    assert sorted(prompts) == sorted(f"e0-{row}" for row in range(16))
