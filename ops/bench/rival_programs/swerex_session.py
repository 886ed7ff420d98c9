"""The local runtime of SWE-ReX, a session of bash in this very process, asked as `asked_calls.py` says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable

from asked_calls import COMMAND, serve  # type: ignore[import-not-found, unused-ignore]  # the program's own folder is on its path

CALL_S = 30
START_S = 30
"""Its own second is too short on a machine that does something else."""


def main() -> None:
    """See the top of this file."""
    logging.disable(logging.CRITICAL)
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest  # type: ignore[import-not-found, unused-ignore]
    from swerex.runtime.local import LocalRuntime  # type: ignore[import-not-found, unused-ignore]

    with asyncio.Runner() as runner, contextlib.redirect_stdout(sys.stderr):
        runtime = LocalRuntime()

        def start() -> Callable[[], str]:
            runner.run(runtime.create_session(CreateBashSessionRequest(startup_timeout=START_S)))
            return lambda: str(runner.run(runtime.run_in_session(BashAction(command=COMMAND, timeout=CALL_S))).output)

        try:
            serve(start)
        finally:
            runner.run(runtime.close())


if __name__ == "__main__":
    main()
