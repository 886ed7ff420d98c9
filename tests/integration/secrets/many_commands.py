"""Runs commands of `rollstream` one after the other, each with what it prints; one interpreter for all of them.

Reads a JSON list of `{"arguments": [...], "environment": {...}}` from standard input, prints `{"arguments", "code", "said"}` a line.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys

if __name__ == "__main__":
    usual = dict(os.environ)
    for each in json.load(sys.stdin):
        os.environ.clear()
        os.environ.update({**usual, **each["environment"]})
        for name in [name for name in sys.modules if name.startswith("ops.cli")]:
            del sys.modules[name]  # a process makes only the command ready that it is asked for
        main, said, code = importlib.import_module("ops.cli").main, io.StringIO(), 0
        sys.argv = ["rollstream", *each["arguments"]]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
        print(json.dumps({"arguments": each["arguments"], "code": code, "said": said.getvalue()}), flush=True)
