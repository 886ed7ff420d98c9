"""Runs inside the sandbox: an IPython kernel without what a notebook would want. `python -I kernel_boot.py CONNECTION_FILE READY_FD`.

Isolated mode keeps the working directory, the user's site and PYTHON* variables away while the kernel loads. Afterwards the working
directory is put at the end of the path: what the agent writes can be imported, and cannot stand in for a library.
Needs only ipykernel; imports nothing of Rollstream, so it runs in any image.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

UNSENT_MESSAGES = 50_000
"""How far a cell may be ahead of who reads its output before lines are lost; the default of 1000 is a fraction of a second of printing."""


class SandboxKernelApp(IPKernelApp):
    """An IPython kernel that reads no configuration, keeps no history and has no heartbeat: its process is watched instead."""

    def load_config_file(self, *_: Any, **__: Any) -> None:
        pass

    def init_heartbeat(self) -> None:
        self.heartbeat = None

    def log_connection_info(self) -> None:
        """What the process prints is kept for the case that it crashes; a greeting is not part of that."""

    def init_path(self) -> None:
        sys.path.append("")

    def init_iopub(self, context: Any) -> None:
        context.sndhwm = UNSENT_MESSAGES
        super().init_iopub(context)  # type: ignore[no-untyped-call]


def main() -> None:
    connection_file, ready_fd = sys.argv[1], int(sys.argv[2])
    sys.argv[1:] = []  # cells see the arguments of nobody
    config = Config()
    config.HistoryManager.enabled = False
    config.IPCompleter.use_jedi = False
    config.InteractiveShell.colors = "nocolor"
    app = SandboxKernelApp.instance(config=config, connection_file=connection_file)
    app.initialize([])  # type: ignore[no-untyped-call]
    os.write(ready_fd, b"r")
    os.close(ready_fd)
    app.start()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
