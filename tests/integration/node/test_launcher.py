"""The launcher of a node as a process, on a real server: its name, its life, what it leaves (docs/adr/0027-node.md)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import psutil
import pytest

from ops.child_processes import log_tail
from ops.node.files import read_note
from ops.node.reading import NodeView
from ops.status.look import look_and_judge
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.node_calls import NodeScripts
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.node.conftest import SMALL, START_S, Machine

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(300), pytest.mark.slow]

NODE_POINTS = ("take_node", "publish_node")
"""Where a launcher is killed."""

Look = Callable[[], Awaitable[NodeView | None]]


async def until(look: Look, condition: Callable[[NodeView], object], description: str, machine: Machine) -> NodeView:
    """The node, once it is so."""
    found: NodeView | None = None

    async def is_so() -> bool:
        nonlocal found
        found = await look()
        return found is not None and bool(condition(found))

    try:
        await wait_until(is_so, description, timeout_s=START_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; its log ends with:\n{log_tail(machine.log)}") from None
    assert found is not None
    return found


def process_of(view: NodeView, name: str) -> int:
    (found,) = [each.pid for each in view.processes if each.name == name]
    return found


async def test_a_node_comes_up_scales_and_drains_and_leaves_nothing(
    machine: Machine, look: Look, settings: QueueSettings, client: AsyncClient, keys: Keys
) -> None:
    launcher = machine.start(*SMALL, "--grace-s", "30", "--until", "2h")
    view = await until(look, lambda view: view.state == "up", "the node is up", machine)
    assert [view.slots(stage) for stage in Stage] == [1, 2, 1]
    assert view.fields["backend"] == "process"
    assert view.left_ms is not None
    assert 3_600_000 < view.left_ms <= 7_200_000
    assert {each.name for each in view.processes} == {"sandboxes", "init-0", "run-0", "eval-0"}
    before = process_of(view, "run-0")

    await NodeScripts(client, settings.namespace).ask_node("n1", {"want.run": "5", "want.eval": "nonsense"})

    view = await until(look, lambda view: view.slots(Stage.RUN) == 5, "RUN has grown", machine)
    assert process_of(view, "run-0") == before  # what runs there goes on
    assert (view.size(Stage.RUN), view.size(Stage.EVAL)) == ("5", "1")
    await wait_until(lambda: ask(client, "EXISTS", keys.worker("run-n1-1")), "the new worker has its name", timeout_s=START_S)

    await NodeScripts(client, settings.namespace).ask_node("n1", {"drain": "1"})

    assert await machine.ended(launcher) == 0, log_tail(machine.log)
    after = await look()
    assert after is not None
    assert (after.state, after.is_alive, after.fields["why"]) == ("ended", False, "drained by `rollstream node drain`")
    assert machine.processes() == []
    assert list(machine.notes.glob("*.json")) == []
    assert await ask(client, "EXISTS", keys.worker("run-n1-0"), keys.worker("init-n1-0"), keys.worker("eval-n1-0")) == 0
    assert await ask(client, "EXISTS", keys.key("n", "n1", "run")) == 0, "what waits in its lane would wait for its last beat to lapse"


async def test_a_second_launcher_is_refused_while_the_first_lives(make_machine: Callable[[], Machine], look: Look) -> None:
    """On the same machine by the lock of a file, on another by the word in Redis. The first does not notice."""
    here, elsewhere = make_machine(), make_machine()
    none = ("--init", "0", "--run", "0", "--eval", "0", "--no-supervisor")
    first = here.start(*none, ROLLSTREAM_WORKER_SANDBOXES="false")
    await until(look, lambda view: view.state == "up", "the first is up", here)

    second, third = here.start(*none), elsewhere.start(*none)

    assert await here.ended(second) == 4
    assert f"process {first.pid} of this machine is the launcher of node n1" in log_tail(here.log)
    assert await elsewhere.ended(third) == 4
    assert f"node n1 has a launcher, process {first.pid}" in log_tail(elsewhere.log)
    assert "process_started" not in log_tail(elsewhere.log)
    view = await look()
    assert view is not None
    assert (view.state, view.number("pid")) == ("up", first.pid)
    first.send_signal(signal.SIGHUP)
    assert await here.ended(first) == 0


async def test_the_name_of_a_launcher_that_says_no_more_is_free_after_a_lease(make_machine: Callable[[], Machine], look: Look) -> None:
    """Its machine is gone. Until the lease is over nobody can know that; a successor waits for it and takes the name."""
    gone, successor = make_machine(), make_machine()
    none = ("--init", "0", "--run", "0", "--eval", "0", "--no-supervisor")
    quick = {"ROLLSTREAM_WORKER_SANDBOXES": "false", "ROLLSTREAM_LEASE_S": "4"}
    first = gone.start(*none, **quick)
    await until(look, lambda view: view.state == "up", "the first is up", gone)
    first.send_signal(signal.SIGSTOP)

    second = successor.start(*none, **quick)

    view = await until(look, lambda view: view.number("pid") == second.pid and view.state == "up", "the second has the name", successor)
    first.send_signal(signal.SIGCONT)
    assert await gone.ended(first) == 4  # it learns that the name is another's
    assert "name_lost" in log_tail(gone.log)
    again = await look()
    assert again is not None
    assert again.fields["boot"] == view.fields["boot"]
    second.terminate()
    assert await successor.ended(second) == 0


async def test_a_killed_launcher_leaves_nothing_after_the_next_start(machine: Machine, look: Look) -> None:
    """Its children notice and leave; one that is frozen cannot, and is ended by the successor, which waits for nobody's lease."""
    first = machine.start(*SMALL)
    view = await until(look, lambda view: view.state == "up", "it is up", machine)
    frozen = psutil.Process(process_of(view, "eval-0"))
    frozen.suspend()
    first.kill()
    first.wait()
    others = [process for process in machine.processes() if process.pid != frozen.pid]
    await asyncio.to_thread(psutil.wait_procs, others, timeout=60)
    assert psutil.pid_exists(frozen.pid)

    said = (machine.folder / "scratch/logs/n1/node.log").read_bytes()  # they log without it
    assert said.count(b'"event":"parent_gone"') == 3

    second = machine.start(*SMALL)

    view = await until(look, lambda view: view.state == "up" and view.number("pid") == second.pid, "the next one is up", machine)
    await wait_until(
        lambda: (machine.folder / "state/logs/n1/warnings.log").read_bytes().count(b'"event":"parent_gone"') == 3,
        "their warnings are copied",
    )
    assert frozen.pid not in [process.pid for process in machine.processes()]
    assert "predecessor_cleaned_up" in machine.log.read_text()
    second.terminate()
    assert await machine.ended(second) == 0
    assert machine.processes() == []


@pytest.mark.parametrize("word", ["take_node", "publish_node", "publish_node:3"])
async def test_a_launcher_killed_at_its_own_words_leaves_its_name_to_the_next(machine: Machine, look: Look, word: str) -> None:
    """Redis has the word, and who said it is gone: the successor takes the name at once, as its machine's lock is free."""
    none = ("--init", "0", "--run", "0", "--eval", "0", "--no-supervisor")
    killed = machine.start(*none, ROLLSTREAM_WORKER_SANDBOXES="false", ROLLSTREAM_FAILPOINT=word)
    assert await machine.ended(killed) == -signal.SIGKILL

    second = machine.start(*none, ROLLSTREAM_WORKER_SANDBOXES="false")

    await until(look, lambda view: view.state == "up" and view.number("pid") == second.pid, "the next one is up", machine)
    second.terminate()
    assert await machine.ended(second) == 0


async def test_a_killed_worker_is_started_again_and_its_crash_is_told(machine: Machine, look: Look) -> None:
    launcher = machine.start(*SMALL)
    view = await until(look, lambda view: view.state == "up", "it is up", machine)
    victim = process_of(view, "run-0")

    os.kill(victim, signal.SIGKILL)

    view = await until(look, lambda view: view.number("crashes") == 1 and view.slots(Stage.RUN) == 2, "it runs again", machine)
    assert (view.fields["crash.name"], view.number("crash.code")) == ("run-0", -9)
    assert "worker_starts" in view.fields["crash.tail"]
    assert process_of(view, "run-0") != victim
    note = read_note(next(machine.notes.glob("*.json")))
    assert note is not None
    assert note.children["run-0"].pid == process_of(view, "run-0")
    launcher.send_signal(signal.SIGINT)
    assert await machine.ended(launcher) == 0


async def test_a_process_that_cannot_work_ends_the_node_with_its_last_lines(machine: Machine, look: Look, settings: QueueSettings) -> None:
    launcher = machine.start(*SMALL, ROLLSTREAM_WORKER_MIN_SLOTS="9")

    assert await machine.ended(launcher) == 1
    said = log_tail(machine.log)
    assert "the node ended: run-0 crashed once, and a restart does not mend it: exit code 2" in said
    assert "min_slots is 9" in said
    view = await look()
    assert view is not None
    assert (view.state, view.fields["crash.name"]) == ("failed", "run-0")
    assert "min_slots is 9" in view.fields["crash.tail"]
    told = (await look_and_judge(settings, patience_s=30.0))[0].troubles
    assert [(trouble.cause, trouble.next, trouble.is_blocking) for trouble in told] == [
        ("node_failed", ("rollstream", "node", "show", "n1"), False)
    ]
    assert "run-0 crashed once, and a restart does not mend it: exit code 2; its last line: " in told[0].what
    assert machine.processes() == []


async def test_a_node_drains_before_its_end(machine: Machine, look: Look) -> None:
    """The grace is longer than what is left: it drains at once."""
    none = ("--init", "0", "--run", "0", "--eval", "0", "--no-supervisor")
    launcher = machine.start(
        *none, "--grace-s", "30", ROLLSTREAM_WORKER_SANDBOXES="false", SLURM_JOB_END_TIME="1796000000", SLURM_JOB_ID="77"
    )

    assert await machine.ended(launcher) == 0
    view = await look()
    assert view is not None
    assert (view.state, view.fields["why"], view.fields["slurm"]) == ("ended", "its end is near", "77")


async def test_asking_a_node_that_nobody_runs_says_so(client: AsyncClient, settings: QueueSettings) -> None:
    nodes = NodeScripts(client, settings.namespace)

    assert await nodes.ask_node("n1", {"drain": "1"}) == ("", 0)
    assert await nodes.take_node("n1", "a", lease_ms=60_000) is None
    assert await nodes.ask_node("n1", {"drain": "1"}) is None
    asked = await nodes.publish_node("n1", "a", {"state": "ended"}, lease_ms=60_000, leaving=True)
    assert not isinstance(asked, str)
    assert asked.drain
    gone = await nodes.ask_node("n1", {"drain": "1"})
    assert gone is not None
    assert gone[0] == "ended"


async def test_a_name_is_taken_from_the_dead_only(client: AsyncClient, settings: QueueSettings) -> None:
    nodes = NodeScripts(client, settings.namespace)
    assert await nodes.take_node("n1", "a", lease_ms=60_000) is None
    assert await nodes.take_node("n1", "a", lease_ms=60_000) is None  # its reply was lost

    taken = await nodes.take_node("n1", "b", lease_ms=60_000)
    assert taken is not None
    assert 0 < taken.lapses_s <= 60
    assert await nodes.take_node("n1", "c", lease_ms=60_000, dead="a") is None
    assert await nodes.publish_node("n1", "a", {"state": "up"}, lease_ms=60_000) == "an unknown host"
