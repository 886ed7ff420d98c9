"""Places where a process can be killed on purpose, to test that nothing is lost there.

Off unless `ROLLSTREAM_FAILPOINT` names one: `<name>` or `<name>:<k>` kills this process by SIGKILL when it passes the place for the k-th
time (default: the first). With `ROLLSTREAM_FAILPOINT_ONCE=<file>` the file is created first and a process that finds it there goes on: of
many processes and restarts exactly one dies.

One place is after every call of a script (`pipeline/scripts/runner.py`), under the script's name. `docs/reference/failpoints.md` lists all.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

FAILPOINT, FAILPOINT_ONCE = "ROLLSTREAM_FAILPOINT", "ROLLSTREAM_FAILPOINT_ONCE"
_armed, _, _which = os.environ.get(FAILPOINT, "").partition(":")
_passed: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """One line at each place; does nothing when not armed."""
    if name != _armed:
        return
    _passed[name] += 1
    if _passed[name] != int(_which or 1):
        return
    once = os.environ.get(FAILPOINT_ONCE)
    if once:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
