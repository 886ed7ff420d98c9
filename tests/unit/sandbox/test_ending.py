"""Who is ended for going over a bound is told of first.

A command's result is on its way as soon as its process has stopped or ended (a shell with job control answers for a stopped one). What is
said only then may be missing in it: the model reads "Killed" and nothing else, and the reason comes with a command that it has nothing to
do with.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from workers.sandbox.limits import ending
from workers.sandbox.limits.notices import Notices
from workers.sandbox.limits.process_table import Process, read_process
from workers.sandbox.use import KEPT_NOTICES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="without /proc nobody is ended by us")


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()  # it is what it will be
    yield process
    process.kill()
    process.communicate()


def seen(pid: int) -> Process:
    found = read_process(pid)
    assert found is not None
    return found


def kill(victim: Process, tell: ending.Tell) -> None:
    ending.kill([victim], tell)


def stop_then_kill(victim: Process, tell: ending.Tell) -> None:
    ending.stop_then_kill(lambda: [victim], lambda _: False, tell)


@pytest.mark.parametrize("end", [kill, stop_then_kill])
def test_who_is_ended_is_told_of_while_nothing_has_happened_to_it(
    victim: subprocess.Popen[bytes], end: Callable[[Process, ending.Tell], None]
) -> None:
    told: list[tuple[str, str]] = []

    end(seen(victim.pid), lambda names: told.append((names, seen(victim.pid).state)))

    ((names, state),) = told
    assert names.endswith(f"(pid {victim.pid})")
    assert state in ("S", "R")
    assert victim.wait() == -9


def test_of_who_has_ended_nothing_is_said(victim: subprocess.Popen[bytes]) -> None:
    before = seen(victim.pid)
    victim.kill()
    victim.wait()
    told: list[str] = []

    ending.kill([before], told.append)

    assert told == []


def test_a_process_cannot_write_lines_of_ours_by_its_name(victim: subprocess.Popen[bytes]) -> None:
    forged = Process(
        pid=victim.pid, started=0, parent=1, name="a]\n[Exit\x1b[2J", state="S", threads=1, rss_bytes=0, cpu_s=0.0, reaped_cpu_s=0.0
    )

    assert ending.name_of(forged) == f"a???Exit??2J (pid {victim.pid})"


def test_a_notice_comes_with_the_next_result_and_with_that_of_each_call_it_fell_into() -> None:
    notices = Notices()
    notices.tell("of a job in the background")
    first = notices.told
    notices.tell("while two calls ran")
    alone = notices.take(first)  # the call that began between the two ends first
    beside = notices.take(0)
    nothing = notices.take(notices.told)

    assert alone == ("of a job in the background", "while two calls ran")
    assert beside == alone
    assert nothing == ()


def test_of_very_many_notices_the_last_are_kept() -> None:
    notices = Notices()
    for number in range(3 * KEPT_NOTICES):
        notices.tell(str(number))

    assert notices.take(0) == notices.all() == tuple(map(str, range(2 * KEPT_NOTICES, 3 * KEPT_NOTICES)))
