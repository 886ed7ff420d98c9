"""A process killed right after each call of a script or a sandbox, once each: nothing is missing or doubled (promises 1, 2, 8).

At the workers' scripts that `ops/chaos` passes they are killed there, at the grader's of a salvaged job in `test_worker_processes.py`, at
the supervisor's in `tests/integration/supervisor/test_kills.py`, at those of a weight update in
`tests/integration/weight_update/test_deaths.py`. Here are the calls of sandboxes, of the inference pool, of a process's own
upkeep, all calls of a trainer and those of a person's commands; and that together these are all there are.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ops.chaos.campaign import WORKER_FAILPOINTS
from ops.child_processes import Child, ChildProcesses, log_tail
from pipeline import codec
from pipeline.blob_sweep import sweep_blobs
from pipeline.failpoints import FAILPOINT, FAILPOINT_ONCE
from pipeline.inference_pool import Call, InferencePool, Server
from pipeline.keys import Keys
from pipeline.messages import Stage, Trajectory
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts, Unit
from pipeline.scripts.calls import new_nonce
from pipeline.scripts.node_calls import Asked, NodeScripts
from pipeline.scripts.run_calls import RunScripts
from pipeline.settings import QueueSettings
from pipeline.testing.queue_audit import QueueAudit
from pipeline.testing.wait import wait_until
from tests.e2e.documents import listed_failpoints
from tests.faults.diary import Diary
from tests.faults.judging_trainer import OUTSIDE_POINTS
from tests.faults.math_fleet import EXPERTS, RUN, MathFleet, ended
from tests.faults.test_worker_processes import GRADER_POINTS
from tests.integration.export.test_export import EXPORT_POINTS
from tests.integration.housekeeping.test_jobs import HOUSEKEEPING_POINTS
from tests.integration.images.test_kills import IMAGE_POINTS
from tests.integration.node.test_launcher import NODE_POINTS
from tests.integration.sandbox_life.test_service_kills import SERVICE_POINTS
from tests.integration.sandbox_nodes.test_placing import PLACING_POINTS
from tests.integration.supervisor.test_kills import SUPERVISOR_POINTS
from tests.integration.trainer_client.test_behind import RESTORE_POINTS
from tests.integration.weight_update.test_deaths import UPDATE_POINTS

WORKER_POINTS = {
    "sandbox_start": Stage.INIT,
    "sandbox_park": Stage.INIT,
    "sandbox_attach": Stage.RUN,
    "sandbox_kernel": Stage.RUN,
    "sandbox_stop": Stage.RUN,
    "blob_put": Stage.RUN,
    "pool_assign": Stage.RUN,
    "pool_renew": Stage.RUN,
    "pool_release": Stage.RUN,
    "pool_begin_call": Stage.RUN,
    "pool_aborted": Stage.RUN,
    "pool_end_call": Stage.RUN,
    "pool_due": Stage.RUN,
    "pool_looked": Stage.RUN,
    "pool_report": Stage.RUN,
    "pool_places": Stage.RUN,
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
UPDATES = {*UPDATE_POINTS, "pool_stop_calls"}
HELD_RESULT = {"ROLLSTREAM_RUN_TTL_S": "12", "TRAINS_S": "60"}
"""A trainer that trains on a step for longer than results live, so that it has to extend them."""
COMMAND_POINTS = {
    "pool_attach": ("llm", "add", "http://127.0.0.1:9", "--run", "given"),
    "pool_drain": ("llm", "drain", "http://127.0.0.1:9", "--run", "given"),
    "pool_detach": ("llm", "clear", "--run", "given"),
    "set_run": ("run", "set", "given", "--weight", "3", "--pause"),
    "ask_node": ("node", "scale", "n1", "run=3"),
}


async def only_named_blobs_are_left(fleet: MathFleet, records: list[dict[str, str]]) -> None:
    """Each record's can be read, and a sweep takes those of the attempts that were killed."""
    await sweep_blobs(fleet.blobs, fleet.client, namespace=fleet.settings.namespace, grace_s=0.0)
    named: set[tuple[str, str]] = set()
    for record in records:
        body = await ask(fleet.client, "GET", fleet.keys.body(record["job"], record["ra"], Stage.RUN.value))
        trajectory = codec.decode(Trajectory, body)
        blobs = [blob for segment in trajectory.segments for blob in segment.blobs]
        assert [fleet.blobs.get(blob, record["job"]).shape[1:] for blob in blobs] == [(EXPERTS.layers, EXPERTS.top_k)] * len(blobs)
        named |= {(record["job"], record["ra"]) for _ in blobs}
    assert len(named) > len(records) / 2, "one that was settled from its journal has none, most have some"
    assert {(kept.life.job, str(kept.life.attempt)) for kept in fleet.blobs.lives()} == named


async def meets_an_unreachable_server(worker: Child, pool: InferencePool) -> None:
    """Gives its run servers that are not there, one after the other: a keeper finds each of them out within a second or two."""
    given: list[str] = []

    async def has_met_one() -> bool:
        given.append(f"unix:/nowhere/{len(given)}")
        await pool.attach(RUN, [Server(given[-1])])
        return worker.exit_code is not None

    await wait_until(has_met_one, "a job was given one of them", timeout_s=40)
    await pool.detach(RUN, given)


async def has_calls_to_abort(worker: Child, pool: InferencePool) -> None:
    """Leaves calls of jobs that are gone at the run's server, one after the other: another worker's keeper may take some."""
    left: list[str] = []

    async def has_aborted_one() -> bool:
        left.append(f"{RUN}.gone.0.{len(left)}")
        found = await pool.assign(RUN, "", left[-1], 1)
        if found is not None:
            await pool.begin_calls(RUN, [Call(found, left[-1])])
            await pool.release(found)
        return worker.exit_code is not None

    await wait_until(has_aborted_one, "its keeper aborted one of them", timeout_s=40)


@pytest.mark.timeout(400)
async def test_a_worker_killed_at_any_call_of_a_sandbox_or_the_pool_loses_nothing(fleet: MathFleet) -> None:
    fleet.incarnation = await fleet.scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
    units: list[Unit] = []
    pool = InferencePool(fleet.client, fleet.settings.namespace, lease_s=30.0)
    for name, stage in WORKER_POINTS.items():
        once = fleet.folder / f"once-{name}"
        fleet.start(stage, **{FAILPOINT: name, FAILPOINT_ONCE: str(once)})
        units += await fleet.accept(len(units), 4, experts=True)
        worker = fleet.workers[stage]
        if name == "pool_report":
            await meets_an_unreachable_server(worker, pool)
        if name == "pool_aborted":
            await has_calls_to_abort(worker, pool)
        await ended(worker, 40)
        assert once.exists(), f"{worker.name} ended by itself: {log_tail(worker.log)}"
        fleet.start(stage)

    async def all_ended() -> bool:
        return int(await ask(fleet.client, "XLEN", fleet.keys.results(RUN))) >= len(units)

    await wait_until(all_ended, f"{len(units)} jobs ended", timeout_s=90)
    audit = QueueAudit(fleet.client, fleet.keys)
    assert await audit.all_ended(RUN, units) == []
    assert {record["out"] for record in await audit.results(RUN)} <= {"ok", "model_failure"}
    await wait_until(lambda: not fleet.of_sandboxes(), "no sandbox is left", timeout_s=30)
    await only_named_blobs_are_left(fleet, await audit.results(RUN))


@pytest.mark.timeout(300)
async def test_a_trainer_killed_at_any_of_its_calls_goes_on_where_it_was(fleet: MathFleet) -> None:
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

    noted = Diary(diary).lines()
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
    pool, address = InferencePool(client, settings.namespace, lease_s=settings.lease_s), "http://127.0.0.1:9"
    if name in ("pool_drain", "pool_detach"):
        await pool.attach("given", [Server(address)])
    nodes = NodeScripts(client, settings.namespace)
    assert await nodes.take_node("n1", "boot", lease_ms=600_000) is None
    with ChildProcesses(tmp_path / "logs", environment) as children:
        for arms in ({FAILPOINT: name}, {}):
            command = children.start(f"{name}{len(ends)}", "ops.cli", *COMMAND_POINTS[name], environment=arms)
            command.asked_to_stop = True
            await ended(command, 30)
            ends.append(command.exit_code)

    assert ends == [-signal.SIGKILL, 0]
    servers = [(server.url, server.standing) for server in (await pool.state("given")).servers]
    share = await RunScripts(client, scripts.keys).set_run("given", window=1)
    assert await nodes.publish_node("n1", "boot", {}, lease_ms=600_000) == Asked(sizes=("", "3" if name == "ask_node" else "", ""))
    assert (servers, share.weight, share.paused) == {
        "pool_attach": ([(address, "up")], 1.0, False),
        "pool_drain": ([(address, "draining")], 1.0, False),
        "pool_detach": ([], 1.0, False),
        "set_run": ([], 3.0, True),
        "ask_node": ([], 1.0, False),
    }[name]


def test_a_process_is_killed_at_every_failpoint_there_is() -> None:
    """The page has all of them (`tests/e2e/test_docs.py`); these are the lists that the kills go through."""
    counted = {name.partition(":")[0] for name in (*SUPERVISOR_POINTS, *IMAGE_POINTS)}
    killed = {
        *WORKER_FAILPOINTS,
        *WORKER_POINTS,
        *GRADER_POINTS,
        *TRAINER_POINTS,
        *COMMAND_POINTS,
        *OUTSIDE_POINTS,
        *RESTORE_POINTS,
        *UPDATES,
        *counted,
        *SERVICE_POINTS,
        *PLACING_POINTS,
        *NODE_POINTS,
        *HOUSEKEEPING_POINTS,
        *EXPORT_POINTS,
    }

    assert killed == set(listed_failpoints())
