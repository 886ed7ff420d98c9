"""A failpoint kills the process that passes it, once, and is nothing when it is not armed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from pipeline.failpoints import failpoint
for number in range(3):
    failpoint("here")
    failpoint("elsewhere")
    print(number, flush=True)
"""


def pass_by(**environment: str) -> tuple[int, list[str]]:
    """Runs a process that passes `here` three times: how it ended, and what it said before."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLSTREAM_")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, env=kept | environment, cwd=Path(__file__).parents[3]
    )
    return ran.returncode, ran.stdout.split()


@pytest.mark.parametrize(
    "armed", [{}, {"ROLLSTREAM_FAILPOINT": ""}, {"ROLLSTREAM_FAILPOINT": "nowhere"}, {"ROLLSTREAM_FAILPOINT": "here:9"}]
)
def test_a_process_passes_what_is_not_armed(armed: dict[str, str]) -> None:
    assert pass_by(**armed) == (0, ["0", "1", "2"])


@pytest.mark.parametrize(("armed", "said"), [("here", []), ("here:1", []), ("here:3", ["0", "1"]), ("elsewhere:2", ["0"])])
def test_it_dies_by_sigkill_at_the_named_passing(armed: str, said: list[str]) -> None:
    assert pass_by(ROLLSTREAM_FAILPOINT=armed) == (-signal.SIGKILL, said)


def test_of_many_processes_exactly_one_dies(tmp_path: Path) -> None:
    """A killed worker is started again with the same environment; it must not die at the same place for ever."""
    armed = {"ROLLSTREAM_FAILPOINT": "here", "ROLLSTREAM_FAILPOINT_ONCE": str(tmp_path / "died")}

    assert [pass_by(**armed)[0] for _ in range(3)] == [-signal.SIGKILL, 0, 0]
