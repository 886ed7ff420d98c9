"""Of a warning that repeats, twenty a minute are written and the rest is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import structlog

from pipeline.log_repeats import MOST, WINDOW_S, Repeats
from pipeline.logs import NodeLog

ROOT = Path(__file__).parents[3]


class Lines:
    """What comes through, at a time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.repeats = Repeats(now_s=lambda: self.now_s)
        self.through: list[dict[str, object]] = []

    def say(self, method: str, event: str) -> None:
        try:
            self.through.append(dict(self.repeats(None, method, {"event": event})))
        except structlog.DropEvent:
            return


def test_what_is_left_out_is_told_with_the_next_line_of_that_event() -> None:
    lines = Lines()
    for _ in range(10_000):
        lines.say("warning", "redis_unreachable")
    assert lines.through == [{"event": "redis_unreachable"}] * MOST

    lines.now_s = WINDOW_S
    lines.say("warning", "redis_unreachable")

    assert lines.through[-1] == {"event": "redis_unreachable", "left_out": 10_000 - MOST}


def test_what_is_left_out_of_an_event_that_comes_no_more_is_told_with_another_one_once() -> None:
    lines = Lines()
    for _ in range(MOST + 3):
        lines.say("error", "a")
    lines.say("info", "b")
    lines.now_s = WINDOW_S
    for _ in range(2):
        lines.say("info", "b")

    assert lines.through[-3:] == [{"event": "b"}, {"event": "b", "also_left_out": {"a": 3}}, {"event": "b"}]
    assert lines.repeats.left() == {}


@pytest.mark.parametrize("method", ["info", "debug"])
def test_what_tells_changes_of_state_is_not_counted(method: str) -> None:
    lines = Lines()

    for _ in range(1000):
        lines.say(method, "step_reached")

    assert len(lines.through) == 1000


def test_a_process_that_ends_tells_what_it_left_out(tmp_path: Path) -> None:
    program = f"""
import structlog
from pipeline.logs import configure_logs
configure_logs(as_json=False, level="info")
for _ in range({MOST} + 5):
    structlog.get_logger().warning("again")
"""
    node = NodeLog(path=tmp_path / "node.log", node="n1", max_bytes=1 << 20, files=2)
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, **node.for_children()}, check=True)

    found = [orjson.loads(line) for line in node.path.read_bytes().splitlines()]
    assert len(found) == MOST + 1
    assert (found[-1]["event"], found[-1]["also_left_out"]) == ("process_ends", {"again": 5})
