"""The terminals of OpenHands: `openhands_terminal.py tmux|subprocess`, asked as `asked_calls.py` says."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial

from asked_calls import COMMAND, serve  # type: ignore[import-not-found, unused-ignore]  # the program's own folder is on its path

CALL_S = 30


def start(kind: str, closing: contextlib.ExitStack) -> Callable[[], str]:
    """Opens a terminal of that kind."""
    from openhands.tools.terminal.definition import TerminalAction  # type: ignore[import-not-found, unused-ignore]
    from openhands.tools.terminal.terminal import create_terminal_session  # type: ignore[import-not-found, unused-ignore]

    session = create_terminal_session(tempfile.gettempdir(), terminal_type=kind)
    session.initialize()
    closing.callback(session.close)
    return lambda: str(session.execute(TerminalAction(command=COMMAND, timeout=CALL_S)).text)


def main() -> None:
    """See the top of this file."""
    os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"
    logging.disable(logging.CRITICAL)
    with contextlib.ExitStack() as closing, contextlib.redirect_stdout(sys.stderr):
        serve(partial(start, sys.argv[1], closing))


if __name__ == "__main__":
    main()
