"""A node that solves arithmetic: worker processes of all stages and a model on a server of their own, which a test kills one by one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import psutil

from ops.child_processes import Child, ChildProcesses
from pipeline import codec
from pipeline.blobs import SharedFolder
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Limits, Prompt, RoutedExperts, Sampling, Stage
from pipeline.redis_client import AsyncClient, command_client
from pipeline.scripts import Scripts, Unit
from pipeline.settings import QueueSettings
from pipeline.testing.servers import PrivateServer, found_servers
from pipeline.testing.wait import wait_until
from workers.sandbox.service.settings import SANDBOXES

RUN = "killed"
LEASE_S = 2.0
EXPERTS = RoutedExperts(layers=2, top_k=2, experts=16)
"""Of the model, which says them in every answer."""
PROBLEMS = "\n".join(f'{{"question": "What is {a} plus {a + 1}?", "answer": "{2 * a + 1}"}}' for a in range(40))


class MathFleet:
    """A node's processes on a server of their own."""

    def __init__(self, settings: QueueSettings, client: AsyncClient, children: ChildProcesses, folder: Path) -> None:
        self.settings = settings
        self.client = client
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self.children = children
        self.folder = folder
        self.workers: dict[Stage, Child] = {}
        self.incarnation = 0
        self._started = 0

    def start(self, stage: Stage, index: int = 0, /, **environment: str) -> None:
        """A worker of a stage, in place of the one before."""
        if stage in self.workers:
            self.kill(self.workers[stage])
        self._started += 1
        self.workers[stage] = self.children.start(
            f"{stage.value}{self._started}",
            "ops.cli",
            *("worker", "run", "--stage", stage.value, "--node", "n1", "--index", str(index)),
            *("--slots", "8", "--grace-s", "1", "--log-json"),
            environment=environment,
        )

    def kill(self, child: Child) -> None:
        child.asked_to_stop = True
        if child.exit_code is None:
            child.process.kill()
            child.process.wait()

    @property
    def blobs(self) -> SharedFolder:
        """What RUN keeps beside records."""
        return SharedFolder(self.folder / "blobs", self.settings.namespace, min_free_bytes=0)

    async def accept(self, first: int, jobs: int, *, tools: bool = True, experts: bool = False) -> list[Unit]:
        """Single math jobs.

        Args:
            experts: whether they keep those that their tokens were routed to.
        """
        template = JobTemplate(
            task="math",
            options={"tools": tools},
            sampling=Sampling(max_tokens=300),
            limits=Limits(max_turns=4, tool_timeout_s=10.0),
            max_lost=20,
            max_failed=20,
            expected_bytes=4096,
            routed_experts=EXPERTS if experts else None,
        )
        units = [
            Unit(f"{RUN}.j{n}", 0, f"j{n}", 0, "1.0", codec.encode(Prompt(id=f"j{n}", data=_problem(n))))
            for n in range(first, first + jobs)
        ]
        body = codec.encode(template)
        await self.scripts.accept(RUN, self.incarnation, template, f"t{int(experts)}", body, units, max_waiting=10**6, window=64)
        return units

    def of_sandboxes(self) -> list[str]:
        """What is left of them: folders, and processes that have to do with one."""
        below = self.folder / "scratch" / SANDBOXES
        found = [path.name for path in below.iterdir()] if below.exists() else []
        for process in psutil.process_iter():
            try:
                if f"{below}/" in " ".join([process.cwd(), *process.cmdline()]):
                    found.append(" ".join(process.cmdline())[:120])
            except psutil.Error:
                continue
        return found


def _problem(number: int) -> dict[str, object]:
    return {"question": f"What is {number % 40} plus {number % 40 + 1}?", "answer": str(2 * (number % 40) + 1)}


@asynccontextmanager
async def math_fleet(stages: Sequence[Stage] = tuple(Stage), **variables: str) -> AsyncIterator[MathFleet]:
    """A server, a model and a worker of each of those stages; `variables` are for the environment of all of them."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="fp-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "problems.jsonl").write_text(PROBLEMS, encoding="utf-8")
        server = stack.enter_context(PrivateServer(found_servers()[0]))
        settings = QueueSettings(redis_url=server.url, lease_s=LEASE_S)
        environment = {
            "ROLLSTREAM_REDIS_URL": server.url,
            "ROLLSTREAM_LEASE_S": str(LEASE_S),
            "ROLLSTREAM_RETRY_BACKOFF_S": "0.05",
            "ROLLSTREAM_SANDBOX_BACKEND": "process",  # what the scripted model writes is known
            **{f"ROLLSTREAM_{name.upper()}_DIR": str(folder / name) for name in ("run", "scratch", "state", "data", "blobs")},
            **variables,
        }
        children = stack.enter_context(ChildProcesses(folder / "logs", environment))
        children.start(
            "model",
            "workers.llm.scripted",
            *("--socket", str(folder / "m"), "--problems", str(folder / "problems.jsonl"), "--tool-rate", "0.9", "--mean-steps", "1"),
            *("--routed-experts", f"{EXPERTS.layers},{EXPERTS.top_k},{EXPERTS.experts}"),
        )
        client = command_client(settings)
        try:
            made = MathFleet(settings, client, children, folder)
            await wait_until((folder / "m").exists, "the model listens", timeout_s=30)
            pool = InferencePool(client, settings.namespace, lease_s=LEASE_S)
            for run in (RUN, "trained"):
                await pool.attach(run, [Server(f"unix:{folder / 'm'}", "", "1.0", shared=True)])
            for stage in stages:
                made.start(stage)
            yield made
        finally:
            await client.aclose()


async def ended(child: Child, timeout_s: float) -> None:
    """Until a process has ended."""
    await wait_until(lambda: child.exit_code is not None, f"{child.name} ended; its log: {child.log}", timeout_s=timeout_s)
