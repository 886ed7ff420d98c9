"""A trainer killed anywhere in an update, under calls that go on: the pause ends with its lease, no token bears a wrong version, and the
next trainer mends what it left (ADR 13)."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from ops.child_processes import Child, ChildProcesses, log_tail
from pipeline.failpoints import FAILPOINT
from pipeline.inference_pool import InferencePool, standing
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.weight_update.callers import Callers, all_turned, calling
from tests.integration.weight_update.engines import Engines
from tests.integration.weight_update.loading import OLD
from trainer_client.weight_update import UpdateMode
from workers.llm.scripted import Fault, ServerOptions
from workers.llm.scripted.options import Latency, WireVersion

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(120)]
TOKEN_S = 0.004
UPDATE_POINTS = (
    "pool_pause",
    "stand_still",
    "engine_paused",
    "engine_marked",
    "pool_hold",
    "engine_label_sent",
    "engine_labelled",
    "pool_resume",
    "engine_resumed",
)
"""Places in the order in which an update comes by them. `pool_stop_calls` is passed where engines have no pause, and when they go away."""
SECOND = ":2"
"""At the second engine, or time: the first one has passed."""


@pytest.fixture
def trainers(settings: QueueSettings, tmp_path: Path) -> Iterator[Trainers]:
    environment = {
        "ROLLSTREAM_REDIS_URL": settings.redis_url,
        "ROLLSTREAM_NAMESPACE": settings.namespace,
        "ROLLSTREAM_LEASE_S": str(settings.lease_s),
    }
    with ChildProcesses(tmp_path, environment) as children:
        yield Trainers(children)


class Trainers:
    """Trainers of one run, one after the other."""

    def __init__(self, children: ChildProcesses) -> None:
        self._children = children
        self._count = 0

    def start(
        self, urls: list[str], first: int, last: int, mode: UpdateMode = "keep", environment: Mapping[str, str] | None = None
    ) -> Child:
        self._count += 1
        module = "tests.integration.weight_update.updating_trainer"
        words = (",".join(urls), str(first), str(last), mode)
        return self._children.start(f"trainer-{self._count}", module, *words, environment=environment or {})

    async def ends(self, child: Child, code: int = 0) -> None:
        child.asked_to_stop = True
        await wait_until(lambda: child.exit_code is not None, f"{child.name} ends", timeout_s=60)
        assert child.exit_code == code, log_tail(child.log)


async def have_turned(callers: Callers, turns: int = 1) -> None:
    await wait_until(all_turned(callers, turns), f"each job has finished {turns} more turns", timeout_s=40)


Place = dict[str, str]


def killed_at() -> list[tuple[Place, UpdateMode]]:
    """Every place once, by turns with calls that freeze and with calls that are aborted."""
    places: list[Place] = [{FAILPOINT: point} for point in (*UPDATE_POINTS, "set_version")]
    places += [{FAILPOINT: point + SECOND} for point in ("engine_paused", "engine_marked", "engine_labelled", "engine_resumed")]
    places += [{"DIE_AFTER_LOADING": str(loaded)} for loaded in range(3)]
    return [(place, "keep" if number % 3 else "abort") for number, place in enumerate(places)]


def name_of(value: Place | str) -> str:
    return value if isinstance(value, str) else "-".join(value.values())


@pytest.mark.parametrize(("place", "mode"), killed_at(), ids=name_of)
async def test_a_trainer_killed_in_an_update_leaves_no_wrong_version_and_nothing_paused(
    trainers: Trainers, engines: Engines, settings: QueueSettings, client: AsyncClient, place: Place, mode: UpdateMode
) -> None:
    urls = [await engines.start(name, per_token_s=TOKEN_S) for name in ("a", "b")]
    await trainers.ends(trainers.start(urls, 1, 1))
    pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
    async with calling(settings, client) as callers:
        callers.start(6)
        await have_turned(callers)

        await trainers.ends(trainers.start(urls, 2, 2, mode, place), -signal.SIGKILL)
        state = await pool.state("run1")

        async def pause_is_over() -> bool:
            return not (await pool.state("run1")).is_paused

        assert state.pause is None or state.pause.holder.startswith("2-"), "status can name who paused"
        await wait_until(pause_is_over, "its lease ran out", timeout_s=2 * settings.lease_s)
        await wait_until(lambda: settled(engines), "what has a proven label goes on, what has none ends its calls", timeout_s=10)
        callers.check()
        if any(
            engine.engine.version.startswith("run1/") and "updating" not in engine.engine.version for engine in engines.servers.values()
        ):
            await have_turned(callers)

        await trainers.ends(trainers.start(urls, 1, 2, mode))
        await have_turned(callers, 2)
        callers.check()
        assert callers.versions <= {"1.1", "2.2", "3.1", "3.2"}
        assert {"1.1", "3.2"} <= callers.versions
        assert [(server.standing, server.version) for server in (await pool.state("run1")).servers] == [("up", "run1/3.2")] * 2
        assert [engines[name].engine.paused for name in ("a", "b")] == [None, None]


def settled(engines: Engines) -> bool:
    """No engine is paused under a label that is a version, and no call is frozen at one that is not."""
    for server in engines.servers.values():
        is_version = "updating" not in server.engine.version
        if server.engine.paused is not None and (is_version or server.engine.request_ids()):
            return False
    return True


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5.10", "sglang-0.5"])
async def test_a_server_that_restarts_as_its_trainer_labels_it_and_dies_is_not_believed(
    trainers: Trainers, engines: Engines, settings: QueueSettings, client: AsyncClient, wire: WireVersion
) -> None:
    """The trainer had proven the server, which restarted; the new process took the label, and the trainer was killed before its second
    proof. Nobody was left who knew. A keeper saw the label to come, and the server went on with the weights of its start: each of its
    tokens bore the new version."""
    options = ServerOptions(wire=wire, latency=Latency(per_token_s=TOKEN_S, sigma=0.0))
    urls = [await engines.start("a", options)]
    pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
    await trainers.ends(trainers.start(urls, 1, 1))
    engines["a"].faults.arm(Fault(kind="restart", path="/update_weight_version", after=1))  # the first one only marks it

    dying = trainers.start(urls, 2, 2, environment={FAILPOINT: "engine_label_sent"})
    dying.asked_to_stop = True
    await wait_until(lambda: dying.exit_code is not None, "it is killed, or the server took no label", timeout_s=60)
    names_start = wire != "sglang-0.5.10"
    assert engines["a"].engine.weights == OLD
    assert (engines["a"].engine.version == "run1/2.2") == names_start, (engines["a"].engine.version, log_tail(dying.log))
    seen_ms = (await pool.state("run1")).now_ms
    async with calling(settings, client) as callers:

        async def was_looked_at() -> bool:
            state = await pool.state("run1")
            return not state.is_paused and all(server.seen_ms > seen_ms for server in state.servers)

        await wait_until(was_looked_at, "the pause ran out, and a keeper has looked", timeout_s=10)
        (server,) = (state := await pool.state("run1")).servers
        assert server.standing == "unsynced"
        assert ("it started anew as an update labelled it" in standing(server, state)) == names_start
        callers.start(4)
        await trainers.ends(trainers.start(urls, 1, 1))
        await have_turned(callers, 2)
        callers.check()
        assert callers.versions == {"3.1"}


@pytest.mark.parametrize("place", [{FAILPOINT: "pool_stop_calls"}, {"DIE_AFTER_LOADING": "1"}], ids=name_of)
async def test_a_trainer_killed_while_its_engines_are_away(
    trainers: Trainers, engines: Engines, settings: QueueSettings, client: AsyncClient, place: Place
) -> None:
    urls = [await engines.start(name, per_token_s=TOKEN_S) for name in ("a", "b")]
    await trainers.ends(trainers.start(urls, 1, 1))
    async with calling(settings, client) as callers:
        callers.start(6)
        await have_turned(callers)
        await trainers.ends(trainers.start(urls, 2, 2, environment={"AWAY": "1", **place}), -signal.SIGKILL)
        await trainers.ends(trainers.start(urls, 1, 1, environment={"AWAY": "1"}))
        await have_turned(callers, 2)
        callers.check()
        assert "3.1" in callers.versions


async def test_a_trainer_that_hangs_in_its_block_is_replaced_and_does_no_harm_when_it_wakes(
    trainers: Trainers, engines: Engines, settings: QueueSettings, client: AsyncClient
) -> None:
    """It stood still in the middle of loading, another trainer took over and loaded. Then it went on, and gave a server its own weights
    under the other's label."""
    urls = [await engines.start(name, per_token_s=TOKEN_S) for name in ("a", "b")]
    await trainers.ends(trainers.start(urls, 1, 1))
    async with calling(settings, client) as callers:
        callers.start(6)
        await have_turned(callers)
        hanging = trainers.start(urls, 2, 2, environment={"STOP_AFTER_LOADING": "1"})
        process = psutil.Process(hanging.process.pid)
        await wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still", timeout_s=30)

        await trainers.ends(trainers.start(urls, 1, 1))
        await have_turned(callers)
        hanging.process.send_signal(signal.SIGCONT)
        hanging.asked_to_stop = True
        await wait_until(lambda: hanging.exit_code is not None, "it finds out that it is fenced off", timeout_s=30)
        await have_turned(callers)

        assert hanging.exit_code != 0
        assert "PauseLost" in log_tail(hanging.log)
        callers.check()
        assert {server.engine.version for server in engines.servers.values()} <= {"run1/3.1"}
