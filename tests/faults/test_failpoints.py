"""A process killed right after each call of a script or a sandbox, once each: nothing is missing or doubled (promises 1, 2, 8).

At the workers' scripts that `ops/chaos` passes they are killed there, at the grader's of a salvaged job in `test_worker_processes.py`, at
the supervisor's in `tests/integration/supervisor/test_kills.py`. Here are the calls of sandboxes, of the inference pool, of a process's own
upkeep, all calls of a trainer and those of a person's commands; and that together these are all there are.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ops.chaos.campaign import WORKER_FAILPOINTS
from ops.child_processes import Child, ChildProcesses, log_tail
from pipeline import codec
from pipeline.failpoints import FAILPOINT, FAILPOINT_ONCE
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Limits, Prompt, Sampling, Stage
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts, Unit
from pipeline.scripts.calls import new_nonce
from pipeline.scripts.run_calls import RunScripts
from pipeline.settings import QueueSettings
from pipeline.testing.queue_audit import QueueAudit
from pipeline.testing.servers import PrivateServer, found_servers
from pipeline.testing.wait import wait_until
from tests.e2e.documents import listed_failpoints
from tests.faults.judging_trainer import OUTSIDE_POINTS
from tests.faults.test_worker_processes import GRADER_POINTS
from tests.integration.supervisor.test_kills import SUPERVISOR_POINTS

RUN = "killed"
LEASE_S = 2.0
PROBLEMS = "\n".join(f'{{"question": "What is {a} plus {a + 1}?", "answer": "{2 * a + 1}"}}' for a in range(40))
WORKER_POINTS = {
    "sandbox_start": Stage.INIT,
    "sandbox_park": Stage.INIT,
    "sandbox_attach": Stage.RUN,
    "sandbox_kernel": Stage.RUN,
    "sandbox_stop": Stage.RUN,
    "pool_assign": Stage.RUN,
    "pool_renew": Stage.RUN,
    "pool_release": Stage.RUN,
    "renew": Stage.RUN,
    "beat_node": Stage.RUN,
    "check_layout": Stage.RUN,
    "janitor_round": Stage.EVAL,
}
TRAINER_POINTS = (
    "check_layout",
    "connect_run",
    "set_version",
    "touch_run",
    "push_prompts",
    "end_prompts",
    "open_step",
    "extend",
    "save_state",
    "ack",
    "open_validation",
    "accept",
    "end_validation",
    "cancel",
    "cancel_step",
)
HELD_RESULT = {"ROLLSTREAM_RUN_TTL_S": "12", "TRAINS_S": "60"}
"""A trainer that trains on a step for longer than results live, so that it has to extend them."""
COMMAND_POINTS = {
    "pool_attach": ("llm", "add", "http://127.0.0.1:9", "--run", "given"),
    "set_run": ("run", "set", "given", "--weight", "3", "--pause"),
}


class Fleet:
    """A node's processes on a server of their own."""

    def __init__(self, settings: QueueSettings, client: AsyncClient, children: ChildProcesses, folder: Path) -> None:
        self.settings = settings
        self.client = client
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self.children = children
        self.folder = folder
        self.workers: dict[Stage, Child] = {}
        self._started = 0

    def start(self, stage: Stage, **environment: str) -> None:
        """A worker of a stage, in place of the one before."""
        if stage in self.workers:
            self.kill(self.workers[stage])
        self._started += 1
        self.workers[stage] = self.children.start(
            f"{stage.value}{self._started}",
            "ops.cli",
            *("worker", "run", "--stage", stage.value, "--node", "n1", "--slots", "8", "--grace-s", "1", "--log-json"),
            environment=environment,
        )

    def kill(self, child: Child) -> None:
        child.asked_to_stop = True
        if child.exit_code is None:
            child.process.kill()
            child.process.wait()

    async def accept(self, first: int, jobs: int, *, tools: bool = True) -> list[Unit]:
        """Single math jobs."""
        template = JobTemplate(
            task="math",
            options={"tools": tools},
            sampling=Sampling(max_tokens=300),
            limits=Limits(max_turns=4, tool_timeout_s=10.0),
            max_lost=20,
            max_failed=20,
            expected_bytes=4096,
        )
        units = [
            Unit(f"{RUN}.j{n}", 0, f"j{n}", 0, "1.0", codec.encode(Prompt(id=f"j{n}", data=_problem(n))))
            for n in range(first, first + jobs)
        ]
        body = codec.encode(template)
        await self.scripts.accept(RUN, self.incarnation, template, "t", body, units, max_waiting=10**6, window=64)
        return units

    incarnation = 0

    def processes(self) -> list[str]:
        """Of sandboxes: what runs below the scratch folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder / "scratch") in " ".join([process.cwd(), *process.cmdline()]):
                    found.append(" ".join(process.cmdline())[:120])
            except psutil.Error:
                continue
        return found


def _problem(number: int) -> dict[str, object]:
    return {"question": f"What is {number % 40} plus {number % 40 + 1}?", "answer": str(2 * (number % 40) + 1)}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
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
            **{f"ROLLSTREAM_{name.upper()}_DIR": str(folder / name) for name in ("run", "scratch", "state", "data")},
        }
        children = stack.enter_context(ChildProcesses(folder / "logs", environment))
        children.start(
            "model",
            "workers.llm.scripted",
            *("--socket", str(folder / "m"), "--problems", str(folder / "problems.jsonl"), "--tool-rate", "0.9", "--mean-steps", "1"),
        )
        client = command_client(settings)
        try:
            made = Fleet(settings, client, children, folder)
            await wait_until((folder / "m").exists, "the model listens", timeout_s=30)
            pool = InferencePool(client, settings.namespace, lease_s=LEASE_S)
            for run in (RUN, "trained"):
                await pool.attach(run, [Server(f"unix:{folder / 'm'}", "", "1.0")], ttl_s=3600)
            for stage in Stage:
                made.start(stage)
            yield made
        finally:
            await client.aclose()


async def ended(child: Child, timeout_s: float) -> None:
    """Until a process has ended."""
    await wait_until(lambda: child.exit_code is not None, f"{child.name} ended; its log: {child.log}", timeout_s=timeout_s)


@pytest.mark.timeout(400)
async def test_a_worker_killed_at_any_call_of_a_sandbox_or_the_pool_loses_nothing(fleet: Fleet) -> None:
    fleet.incarnation = await fleet.scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
    units: list[Unit] = []
    for name, stage in WORKER_POINTS.items():
        once = fleet.folder / f"once-{name}"
        fleet.start(stage, **{FAILPOINT: name, FAILPOINT_ONCE: str(once)})
        units += await fleet.accept(len(units), 4)
        worker = fleet.workers[stage]
        await ended(worker, 40)
        assert once.exists(), f"{worker.name} ended by itself: {log_tail(worker.log)}"
        fleet.start(stage)

    async def all_ended() -> bool:
        return int(await ask(fleet.client, "XLEN", fleet.keys.results(RUN))) >= len(units)

    await wait_until(all_ended, f"{len(units)} jobs ended", timeout_s=90)
    audit = QueueAudit(fleet.client, fleet.keys)
    assert await audit.all_ended(RUN, units) == []
    assert {record["out"] for record in await audit.results(RUN)} <= {"ok", "model_failure"}

    def nothing_is_left() -> bool:
        return not fleet.processes() and not list((fleet.folder / "scratch").glob("*/sandboxes/*"))

    await wait_until(nothing_is_left, "no sandbox is left", timeout_s=30)


@pytest.mark.timeout(300)
async def test_a_trainer_killed_at_any_of_its_calls_goes_on_where_it_was(fleet: Fleet) -> None:
    """Each time a new trainer dies at the next failpoint; the last one comes to the end. No prompt is trained in two steps."""
    fleet.children.start("supervisor", "ops.cli", "supervisor", "run", "--name", "s", "--log-json")
    diary = fleet.folder / "diary"
    died = []
    for number, name in enumerate((*TRAINER_POINTS, "")):
        once = fleet.folder / f"once-{name}"
        armed = {FAILPOINT: name, FAILPOINT_ONCE: str(once), **(HELD_RESULT if name == "extend" else {})} if name else {}
        trainer = fleet.children.start(f"trainer{number}", "tests.faults.trainer_program", "trained", str(diary), environment=armed)
        trainer.asked_to_stop = True
        await ended(trainer, 90)
        if once.exists():
            died.append(name)
        else:
            assert trainer.exit_code == 0, f"{name}: {trainer.exit_code}: {log_tail(trainer.log)}"

    noted = [line.split() for line in diary.read_text(encoding="ascii").splitlines()]
    trained = [words for words in noted if words[0].isdigit()]
    steps_of = {prompt: {step for step, other in trained if other == prompt} for _, prompt in trained}
    assert tuple(died) == TRAINER_POINTS
    assert {prompt: steps for prompt, steps in steps_of.items() if len(steps) > 1} == {}
    assert {step for step, _ in trained} == {"1", "2"}
    assert len({jobs for word, jobs in noted if word == "validated"}) == 1
    assert [words[1] for words in noted if words[0] == "acked"] == ["True", "True"]


@pytest.mark.one_server
@pytest.mark.parametrize("name", COMMAND_POINTS)
async def test_a_command_killed_at_its_call_is_given_again(name: str, settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> None:
    environment = {"ROLLSTREAM_REDIS_URL": settings.redis_url, "ROLLSTREAM_NAMESPACE": settings.namespace}
    ends: list[int | None] = []
    scripts = Scripts(client, Keys.of_shard(settings.namespace, 0))
    await scripts.connect_run("given", nonce=new_nonce(), ttl_s=3600)
    with ChildProcesses(tmp_path / "logs", environment) as children:
        for arms in ({FAILPOINT: name}, {}):
            command = children.start(f"{name}{len(ends)}", "ops.cli", *COMMAND_POINTS[name], environment=arms)
            command.asked_to_stop = True
            await ended(command, 30)
            ends.append(command.exit_code)

    assert ends == [-signal.SIGKILL, 0]
    servers = await InferencePool(client, settings.namespace, lease_s=settings.lease_s).servers("given")
    share = await RunScripts(client, scripts.keys).set_run("given", window=1)
    assert {"pool_attach": [server.url for server in servers], "set_run": (share.weight, share.paused)}[name] == (
        ["http://127.0.0.1:9"] if name == "pool_attach" else (3.0, True)
    )


def test_a_process_is_killed_at_every_failpoint_there_is() -> None:
    """The page has all of them (`tests/e2e/test_docs.py`); these are the lists that the kills go through."""
    supervisors = {name.partition(":")[0] for name in SUPERVISOR_POINTS}
    killed = {*WORKER_FAILPOINTS, *WORKER_POINTS, *GRADER_POINTS, *TRAINER_POINTS, *COMMAND_POINTS, *OUTSIDE_POINTS, *supervisors}

    assert killed == set(listed_failpoints())
