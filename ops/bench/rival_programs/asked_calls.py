"""A rival's shell, asked by lines: a number on standard input is so many `echo hi`, answered by a line of JSON with milliseconds each.

The first line out says that it is ready, with how long that took. It ends with its standard input, and so with who asks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

COMMAND = "echo hi"
EXPECTED = "hi"


def serve(start: Callable[[], Callable[[], str]]) -> None:
    """Answers until the end of standard input.

    Args:
        start: gives what runs the command once and returns its output. A call that raises, or gives something else, has failed: it is
            counted and has no time.
    """
    began = time.perf_counter()
    call = start()
    _check(call())
    _say({"started_ms": (time.perf_counter() - began) * 1000})
    for line in sys.stdin:
        calls_ms, failed = [], 0
        for _ in range(int(line)):
            began = time.perf_counter()
            try:
                output = call()
                took_ms = (time.perf_counter() - began) * 1000
                _check(output)
            except Exception as error:  # noqa: BLE001  # whatever the rival's is
                failed += 1
                sys.stderr.write(f"{error!r}\n")
            else:
                calls_ms.append(took_ms)
        _say({"calls_ms": calls_ms, "failed": failed})


def _check(output: str) -> None:
    if EXPECTED not in output.replace(COMMAND, ""):  # some give the command back too, and what a terminal is told of the prompt
        raise RuntimeError(f"{COMMAND!r} gave {output!r}")


def _say(answer: object) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]  # a program has one
    sys.__stdout__.flush()  # type: ignore[union-attr]
