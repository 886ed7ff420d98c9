"""What a process does before it is inside: it must not load anything afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import workers.sandbox.local.holder

FOLDER = str(Path(workers.sandbox.local.holder.__file__).parent)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def run(program: str, *, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=20, cwd=cwd)
    return done.stdout + done.stderr


def test_after_it_has_entered_no_module_can_be_loaded(tmp_path: Path) -> None:
    """Neither from where the sandbox's files are, nor the library's own, which are the sandbox's by then too."""
    (tmp_path / "planted.py").write_text("print('loaded')")
    program = f"""
import sys
sys.path[:0] = [{FOLDER!r}, {str(tmp_path)!r}]
import entering, json
entering.forbid_imports()
for name in ('planted', 'colorsys', 'encodings.cp437', 'json'):
    try:
        __import__(name)
        print('has', name)
    except ImportError:
        print('no', name)
"""

    assert run(program, cwd=tmp_path) == "no planted\nno colorsys\nno encodings.cp437\nhas json\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root has no rights to drop, except inside a sandbox: tried there")
def test_rights_are_gone_for_good_after_they_were_dropped(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = [{FOLDER!r}]
import entering
entering.drop_privileges()
lines = open('/proc/self/status').read().splitlines()
print([line.split()[1] for line in lines if line.startswith(('Cap', 'NoNewPrivs'))])
"""

    assert run(program, cwd=tmp_path) == f"{['0' * 16] * 5 + ['1']}\n"
