"""Logs tell and never stop what they tell of; nothing secret is in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
import sys, structlog
from pipeline.logs import configure_logs
configure_logs(as_json=sys.argv[1] == "json", stream=open(sys.argv[2], "w"))
log = structlog.get_logger()
for number in range(100):
    log.warning("something", number=number)
try:
    raise ValueError("cannot connect to redis://user:hunter2@host/0")
except ValueError:
    log.exception("failed", password="hunter2")
print("went on")
"""


def run_program(form: str, stream: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, form, stream], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    """The disk is full, or the reader of the pipe is gone. A worker's thread that renews leases died of the line that should have told of
    an outage, and a host whose parent was killed died of the line that told so, before it told its children to end."""
    for form in ("json", "lines"):
        done = run_program(form, "/dev/full")

        assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


def test_a_password_in_an_exception_is_hidden(tmp_path: Path) -> None:
    """Fields were looked through before the exception became one of them."""
    for form in ("json", "lines"):
        log = tmp_path / form
        assert run_program(form, str(log)).returncode == 0

        assert "cannot connect to redis://user:***@host/0" in log.read_text()
        assert "hunter2" not in log.read_text()
