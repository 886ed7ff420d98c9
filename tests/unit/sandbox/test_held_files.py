"""Files without a name are found by the descriptors of who holds them, each once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.sandbox.limits.held_files import held_files
from workers.sandbox.limits.process_table import TICKS_A_SECOND, read_process
from workers.sandbox.limits.verdicts import ENTERING_S, hides

MIB = 1024**2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_disk_of_deleted_files_count_once_and_named_files_not_at_all(tmp_path: Path) -> None:
    me = read_process(os.getpid())
    assert me is not None
    before = held_files([me])
    in_memory = os.memfd_create("held")
    os.write(in_memory, bytes(2 * MIB))
    again = os.dup(in_memory)
    sparse = os.memfd_create("sparse")
    os.ftruncate(sparse, 64 * MIB)
    with (tmp_path / "named").open("wb") as named, (tmp_path / "gone").open("wb") as gone:
        (tmp_path / "gone").unlink()
        for file in (named, gone):
            file.write(bytes(3 * MIB))
            file.flush()

        found = held_files([me, me])

    key = (me.pid, me.started)
    assert found.memory[key] - before.memory.get(key, 0) == 2 * MIB
    assert 3 * MIB <= found.disk[key] - before.disk.get(key, 0) < 4 * MIB
    assert found.hidden == ()
    for descriptor in (in_memory, again, sparse):
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(os.geteuid() == 0, reason="from root nobody can hide")
def test_who_hides_is_told_and_ended_for_it_unless_it_may_just_be_entering() -> None:
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('hidden', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hide], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = read_process(child.pid)
        assert process is not None

        assert held_files([process]).hidden == (process,)
        child.kill()

    started_s = process.started / TICKS_A_SECOND
    me = read_process(os.getpid())
    assert me is not None
    assert not hides(process, started_s + ENTERING_S - 1, inside=[process])
    assert hides(process, started_s + ENTERING_S + 1, inside=[process])
    assert hides(process, started_s, inside=[process, me])
