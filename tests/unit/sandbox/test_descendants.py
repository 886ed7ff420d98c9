"""Who is below whom: by the kernel's lists of children as by the whole table."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workers.sandbox.local.holder.descendants import below, process_table, started_by

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")

TREE = """
import subprocess, sys, threading
children = []
def start(*argv):
    children.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
start("sh", "-c", "exec 3<&0; cat <&3 & cat <&3 & echo up; read _")  # of what goes on behind, input is /dev/null unless it is said
thread = threading.Thread(target=start, args=("sh", "-c", "echo up; read _"))
thread.start()
thread.join()
for child in children:
    child.stdout.readline()
print("up", flush=True)
sys.stdin.readline()
for child in children:
    child.kill()
"""


def test_children_of_children_and_of_threads_are_found() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as root:
        assert root.stdout is not None
        root.stdout.readline()

        fast = {(process.pid, process.started) for process in started_by(root.pid)}
        whole = {(process.pid, process.started) for process in below(root.pid, process_table())}

        assert fast == whole
        assert len(fast) >= 3
        assert started_by(os.getpid()), "we have that child"
        root.communicate(b"\n")


def test_what_has_ended_has_nobody_below() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert started_by(ended.pid) == []
