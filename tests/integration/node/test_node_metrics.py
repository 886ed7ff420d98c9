"""What the launcher of a node answers of its processes, while they live, are killed, and end (docs/adr/0032-metrics.md)."""

from __future__ import annotations

import os
import signal

import orjson
import pytest

from ops.child_processes import log_tail
from ops.node.settings import NodeSettings
from pipeline import codec
from pipeline.errors import InvalidRequest
from pipeline.messages import Stage
from pipeline.scripts import Scripts
from pipeline.testing import a_template, a_unit, wait_until
from tests.integration.metrics.scraping import get, samples
from tests.integration.node.conftest import START_S, Machine
from tests.integration.node.test_launcher import Look, process_of, until

RUN = "run1"
SIZES = ("--init", "1", "--run", "2", "--eval", "0", "--no-supervisor", "--grace-s", "60")


@pytest.mark.one_server
@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_node_answers_for_its_processes_and_what_a_killed_one_did_stays_done(
    machine: Machine, look: Look, scripts: Scripts
) -> None:
    """The job waits in RUN for a model server that nobody has given it, is put back when its worker is killed, and begun again."""
    targets = machine.folder / "targets"
    launcher = machine.start(*SIZES, ROLLSTREAM_WORKER_SANDBOXES="false", ROLLSTREAM_METRICS_TARGETS_DIR=str(targets))
    view = await until(look, lambda view: view.state == "up", "the node is up", machine)
    url = view.fields["metrics"]
    before = process_of(view, "run-0")

    async def number(name: str) -> float:
        return samples((await get(url))[2])[name]

    async def begun(count: int) -> bool:
        return await number('rollstream_worker_claims_total{stage="run"}') == count

    incarnation = await scripts.connect_run(RUN, nonce="trainer", ttl_s=3600)
    template = a_template(options={"tools": False})
    await scripts.accept(RUN, incarnation, template, "t", codec.encode(template), [a_unit(RUN)], max_waiting=10**6, window=256)
    await wait_until(lambda: begun(1), "RUN has begun the job", timeout_s=START_S)
    slots = [await number(f'rollstream_worker_slots{{stage="{stage.value}"}}') for stage in Stage]
    busy = await number('rollstream_worker_busy_slots{stage="run"}')
    (target,) = targets.iterdir()
    os.kill(before, signal.SIGKILL)
    await wait_until(lambda: begun(2), "its successor has begun the job again", timeout_s=START_S)
    after = samples((await get(url))[2])
    places = orjson.loads(target.read_bytes())
    launcher.send_signal(signal.SIGTERM)
    await until(look, lambda view: view.state == "draining", "it drains", machine)
    launcher.send_signal(signal.SIGINT)

    assert await machine.ended(launcher) == 0, log_tail(machine.log)
    assert (slots, busy) == ([1, 2, 0], 1)
    assert after['rollstream_worker_slots{stage="run"}'] == 2, "the killed one has none"
    assert after['rollstream_worker_busy_slots{stage="run"}'] == 1
    assert after['rollstream_worker_retries_total{stage="run"}'] == 1
    assert after['rollstream_worker_attempts_total{end="handed_off",stage="init"}'] == 1
    assert after['rollstream_launcher_processes{state="up"}'] == 2
    assert places == [
        {"targets": [url.split("/")[2]], "labels": {"rollstream": "node", "namespace": scripts.keys.tag[1:-1].split(":")[0], "node": "n1"}}
    ]
    assert list(targets.iterdir()) == [], "a planned end"
    assert not list(machine.notes.glob("*.measures"))


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="metrics_port"):
        NodeSettings.load(None, metrics_port=70_000)
