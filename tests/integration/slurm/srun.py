"""A stand-in for `srun`: runs a command once on each "node", a network namespace of its own, with a name and a folder for
temporary files.

Knows the options that ops/slurm uses. As srun (Slurm 22.05) it passes SIGUSR1 on to the tasks, and kills them when it gets SIGTERM; it ends
with the highest exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def command_on(node: dict[str, str], hosts: str, command: list[str]) -> list[str]:
    """What runs a command there. Every step replaces the one before: the process that is started is the command in the end."""
    enter = ["nsenter", f"--net=/run/netns/{node['netns']}", "unshare", "--uts", "--mount", "sh", "-c", ENTER, "sh", node["name"], hosts]
    return [*enter, *command]


def main() -> int:
    """One step."""
    cluster = json.loads(Path(os.environ["STAND_IN_CLUSTER"]).read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("--nodes", "--ntasks", "--nodelist", "--ntasks-per-node", "--wait", "--kill-on-bad-exit"):
        parser.add_argument(option, default="")
    for option in ("--overlap", "--no-kill"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    tasks: list[subprocess.Popen[bytes]] = []

    def tell(number: int) -> None:
        for task in tasks:
            if task.poll() is None:
                task.send_signal(number)

    signal.signal(signal.SIGUSR1, lambda number, _: tell(number))
    signal.signal(signal.SIGTERM, lambda *_: tell(signal.SIGKILL))
    for index, node in enumerate(cluster["nodes"]):
        if asked.nodelist in ("", node["name"]):
            own = {"SLURM_NODEID": str(index), "SLURMD_NODENAME": node["name"], "SLURM_TMPDIR": node["tmp"]}
            tasks.append(subprocess.Popen(command_on(node, cluster["hosts"], asked.command), env={**os.environ, **own}))
    return max(code if code >= 0 else 128 - code for code in (task.wait() for task in tasks))


if __name__ == "__main__":
    sys.exit(main())
