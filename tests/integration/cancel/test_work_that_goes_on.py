"""Work that swallows its interruption keeps nothing: not its job, not its sandbox, not its slot, not the end of its worker."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.interruption import LEFT_BEHIND_S
from pipeline.messages import Stage
from pipeline.testing import wait_until
from tests.integration.cancel.workplace import Acting, Workplace

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(60)]


@pytest.mark.slow
async def test_a_handler_that_swallows_its_cancel_is_left_behind(workplace: Workplace) -> None:
    """A loop with `except BaseException` around its calls: it began the next tool call, its job was never settled, its slot never free,
    and the worker never left."""
    handler = Acting(deaf=True)
    await workplace.serve(Stage.INIT, handler=handler)
    (run,) = await workplace.serve(Stage.RUN, handler=handler, slots=1)
    (job,) = await workplace.add("one")
    await workplace.tool_runs()

    await workplace.scripts.cancel("job", [job], "user")

    await workplace.cancelled(job, "user", timeout_s=LEFT_BEHIND_S)
    assert handler.deafened == ["CancelledError"], "the job is settled while its work still goes on"
    await wait_until(lambda: len(handler.deafened) == 2, "its sandbox was taken from it")
    assert handler.deafened[1] in ("SandboxGone", "SandboxTaken")  # by its worker, or by the agent of the node
    await workplace.nothing_is_left()

    handler.deaf = False
    (second,) = await workplace.add("two")
    await workplace.in_state(second, "run", "running")
    await workplace.scripts.cancel("job", [second], "user")
    await workplace.results(2)
    run.stop.set()
    await wait_until(lambda: workplace.workers[-1][1].done(), "the worker has left", timeout_s=3 * LEFT_BEHIND_S)
    assert await workplace.workers.pop()[1] == 0
    handler.may_end.set()
    await wait_until(lambda: not [t for t in asyncio.all_tasks() if t.get_name().startswith(f"run-{job}")], "it ended at last")
    await workplace.nothing_is_left()


@pytest.mark.slow
async def test_a_handler_that_does_not_let_itself_be_handed_back(workplace: Workplace) -> None:
    """Its worker is told to go, at once: the job is another's to begin again, and the sandbox is gone before it is."""
    handler = Acting(deaf=True)
    await workplace.serve(Stage.INIT, handler=handler)
    (run,) = await workplace.serve(Stage.RUN, handler=handler, slots=1)
    (job,) = await workplace.add("one")
    await workplace.tool_runs()

    run.stop.set()
    run.hurry.set()

    await wait_until(lambda: workplace.workers[-1][1].done(), "the worker has left", timeout_s=3 * LEFT_BEHIND_S)
    assert await workplace.workers.pop()[1] == 0
    h = await workplace.audit.job(job)
    assert (h["failed"], h["lost"], handler.deafened) == ("0", "0", ["CancelledError", "SandboxGone"])
    assert h["st"] == "ready" or h["stage"] == "init", "it waits, or INIT has begun it again by now"
    assert workplace.processes() == []
    await workplace.scripts.cancel("job", [job], "user")
    handler.may_end.set()
    await workplace.nothing_is_left()
