"""How many cores a process goes by: a node of 128 gives a Slurm step two of them, a container half of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.messages import Stage
from pipeline.usable_cores import usable_cores
from workers.settings import MOST_DEFAULT_SLOTS, SLOTS_A_CORE, WorkerSettings

ASK = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
from pipeline.messages import Stage
from pipeline.usable_cores import usable_cores
from workers.settings import WorkerSettings
print(usable_cores(), *(WorkerSettings(stage=stage).slot_count for stage in Stage))
"""


@pytest.mark.parametrize(
    ("lines", "files", "cores"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/a\n", {"a/cpu.max": "10000 100000"}, 1),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, 1),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 10**6),
        ("", {}, 10**6),
    ],
)
def test_cores_are_those_of_the_affinity_and_of_the_least_quota(tmp_path: Path, lines: str, files: dict[str, str], cores: int) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(lines)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert usable_cores(proc=tmp_path, mounts=tmp_path) == min(cores, allowed)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_a_process_that_is_bound_to_one_core_takes_jobs_for_one() -> None:
    """Slots were numbers of their own, so a worker bound to one core of a large node took as many jobs as one that had it all."""
    one = str(min(os.sched_getaffinity(0)))

    asked = subprocess.run([sys.executable, "-c", ASK, one], capture_output=True, text=True, check=True, timeout=30)

    assert asked.stdout.split() == ["1", *(str(SLOTS_A_CORE[stage]) for stage in Stage)]


def test_slots_by_default_are_those_of_the_cores_up_to_what_one_process_serves() -> None:
    cores = usable_cores()

    for stage in Stage:
        assert WorkerSettings(stage=stage).slot_count == min(MOST_DEFAULT_SLOTS[stage], SLOTS_A_CORE[stage] * cores)
        assert WorkerSettings(stage=stage, slots=7).slot_count == 7
