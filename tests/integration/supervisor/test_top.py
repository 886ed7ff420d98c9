"""`rollstream top` over time: on a run whose jobs end, and on terminals of 80 columns that draw nothing and know no colours."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ops.look import look
from ops.top.history import History
from ops.top.over_time import over_time
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import wait_in_thread
from tests.integration.supervisor.fleet import Fleet, mixed
from tests.integration.supervisor.test_run_report import printed

ROOT = Path(__file__).resolve().parents[3]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME = "\x1b[H"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)(?:;\d+)*m")

pytestmark = pytest.mark.one_server


async def test_what_a_pipeline_did_between_two_looks_is_shown(fleet: Fleet, client: AsyncClient, settings: QueueSettings) -> None:
    await fleet.push_many(2)
    await fleet.open(0, StepSpec(target=2, n=4, over=1.0))
    await fleet.supervise()
    history = History()
    history.add(await look(client, settings), at_s=10.0)
    await fleet.work()
    for group in fleet.groups():
        await fleet.end(group, mixed)
    await fleet.supervise()
    history.add(await look(client, settings), at_s=12.0)

    rows = {row.name: [*row.values] for row in history.rows()}
    unread = [value or 0 for value in rows.pop("unread")]
    assert rows == {
        "init jobs/s": [None, 4.0],
        "run jobs/s": [None, 4.0],
        "eval jobs/s": [None, 4.0],
        "backlog": [8, 0],
        "tokens/s": [None, 2 * 12 / 2.0],
    }
    assert unread == sorted({*unread}), "more of them"

    lines = printed(over_time(history, every_s=2.0)).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.search(r"^run jobs/s +█ +4 +4 *$", "\n".join(lines), re.MULTILINE)
    assert re.search(r"^backlog +█▁ +0 +8 *$", "\n".join(lines), re.MULTILINE)


@contextmanager
def on_a_terminal(settings: QueueSettings, kind: str) -> Iterator[list[str]]:
    """`rollstream top` on one of 80 columns; yields a list whose only entry is all that it has written, read anew by `grown`."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    environment = {
        "PATH": os.environ["PATH"],
        "TERM": kind,
        "NO_COLOR": "1",
        "ROLLSTREAM_REDIS_URL": settings.redis_url,
        "ROLLSTREAM_NAMESPACE": settings.namespace,
        "LANG": "C.UTF-8",
    }
    command = [sys.executable, "-m", "ops.cli", "top", "--every", "0.1"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    written = [""]
    os.set_blocking(ours, False)

    def grown() -> bool:
        assert process.poll() is None, written[0]
        with suppress(BlockingIOError):
            written[0] += os.read(ours, 1 << 16).decode(errors="replace")
        return written[0].count("over time") >= 3

    try:
        wait_in_thread(grown, "three looks were shown", timeout_s=50)
        yield written
    finally:
        process.terminate()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("kind", ["dumb", "xterm-256color"])
async def test_it_fits_80_columns_and_needs_no_colour(fleet: Fleet, settings: QueueSettings, kind: str) -> None:
    await fleet.push_many(2)
    await fleet.open(0, StepSpec(target=2, n=4, over=1.0))
    await fleet.supervise()

    with on_a_terminal(settings, kind) as written:
        shown = written[0]

    assert not COLOUR.search(shown)
    assert ("\x1b[" in shown) is (kind != "dumb")
    lines = CONTROL.sub("", shown.replace(HOME, "\n")).replace("\r", "").split("\n")
    assert max(map(len, lines)) <= 80
    assert any(re.match(r"backlog +█+ +8 +8 *$", line) for line in lines), shown
    assert any(re.match(r"eval jobs/s +▁+ +0 +0 *$", line) for line in lines), shown
