"""Child processes that are called, killed and replaced."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from workers.graders import CallCrashed, CallTimedOut, ChildNotStarted, KillablePool

CHILD = "tests.unit.graders.example_child"
ROOT = Path(__file__).resolve().parents[3]
LONG_S = 30.0


@pytest.fixture
async def pool() -> AsyncIterator[KillablePool]:
    async with KillablePool(CHILD, processes=1, memory_bytes=64 << 20) as pool:
        yield pool


async def echo(pool: KillablePool, text: str = "hello") -> int:
    reply = await pool.call({"do": "echo", "text": text}, limit_s=LONG_S)
    assert reply["said"] == text
    return int(reply["pid"])


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def test_nothing_starts_before_the_first_call(pool: KillablePool) -> None:
    assert pool.pids == frozenset()

    assert await echo(pool) in pool.pids


async def test_a_child_serves_one_call_after_the_other_and_its_prints_do_no_harm(pool: KillablePool) -> None:
    pids = {await echo(pool, text) for text in ("one", "zwei", "trois \ud800")}

    assert len(pids) == 1


@pytest.mark.parametrize("what", ["spin", *(pytest.param(what, marks=pytest.mark.slow) for what in ("sleep", "one long operation"))])
async def test_a_child_that_overruns_is_dead_in_time_and_replaced(pool: KillablePool, what: str) -> None:
    before = await echo(pool)
    started = time.perf_counter()

    with pytest.raises(CallTimedOut):
        await pool.call({"do": what}, limit_s=0.3)

    assert time.perf_counter() - started < 5
    assert not psutil.pid_exists(before)
    assert await echo(pool) != before


async def test_a_child_that_dies_of_a_request_is_told_apart(pool: KillablePool) -> None:
    with pytest.raises(CallCrashed, match="status 7"):
        await pool.call({"do": "die"}, limit_s=LONG_S)

    assert await echo(pool)


async def test_a_child_that_dies_by_chance_is_replaced_without_a_word(pool: KillablePool, tmp_path: Path) -> None:
    reply = await pool.call({"do": "die once", "path": str(tmp_path / "mark")}, limit_s=LONG_S)

    assert reply == {"survived": True}


async def test_memory_is_bounded_and_the_child_lives_on(pool: KillablePool) -> None:
    before = await echo(pool)

    reply = await pool.call({"do": "allocate", "bytes": 256 << 20}, limit_s=LONG_S)

    if sys.platform == "linux":
        assert reply["error"] == "MemoryError"
    assert await echo(pool) == before


async def test_an_error_of_the_child_is_a_reply(pool: KillablePool) -> None:
    reply = await pool.call({"do": "something else"}, limit_s=LONG_S)

    assert reply["error"] == "LookupError"
    assert "something else" in reply["message"]


async def test_a_child_writes_no_files_and_sees_no_secrets(pool: KillablePool, tmp_path: Path) -> None:
    reply = await pool.call({"do": "write", "path": str(tmp_path / "file")}, limit_s=LONG_S)
    names = (await pool.call({"do": "environment"}, limit_s=LONG_S))["names"]

    assert reply["error"] == "OSError"
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in names


async def test_a_cancelled_call_takes_its_child_with_it(pool: KillablePool) -> None:
    pid = await echo(pool)
    call = asyncio.create_task(pool.call({"do": "spin"}, limit_s=LONG_S))
    await wait_until(lambda: pool.working == {pid}, "the child is at work")

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert not psutil.pid_exists(pid)
    assert await echo(pool) != pid


async def test_leaving_the_pool_ends_idle_and_busy_children() -> None:
    async with KillablePool(CHILD, processes=2) as pool:
        await pool.warm()
        busy = asyncio.create_task(pool.call({"do": "spin"}, limit_s=LONG_S))
        pids = pool.pids
        assert len(pids) == 2
        await wait_until(lambda: pool.working, "one child is at work")

    with pytest.raises(RuntimeError, match="closed"):
        await busy
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        await echo(pool)


async def test_a_child_is_replaced_after_its_share_of_calls() -> None:
    async with KillablePool(CHILD, processes=1, calls_before_replacement=2) as pool:
        pids = [await echo(pool) for _ in range(4)]

    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_a_child_that_cannot_start_says_why() -> None:
    async with KillablePool("tests.unit.graders.no_such_module") as pool:
        with pytest.raises(ChildNotStarted, match="no_such_module"):
            await pool.call({}, limit_s=LONG_S)
        assert pool.pids == frozenset()


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.graders.pool_owner", request.param], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize(
    "owner", ["spin", *(pytest.param(what, marks=pytest.mark.slow) for what in ("idle", "sleep", "one long operation"))], indirect=True
)
async def test_no_child_outlives_a_killed_parent(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    pid = int(await asyncio.to_thread(owner.stdout.readline))
    assert psutil.pid_exists(pid)

    owner.kill()
    owner.wait()

    await wait_until(lambda: is_gone(pid), "the child followed its parent")
