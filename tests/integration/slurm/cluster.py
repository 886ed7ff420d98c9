"""Some "nodes" on this machine: network namespaces on a bridge, and allocations of them that run ops/slurm/node.sbatch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ops.bench.nodes_network import NodeNetwork
from tests.integration.slurm.srun import command_on

ROOT = Path(__file__).resolve().parents[3]


@dataclass(slots=True)
class Cluster:
    """Nodes `c1`, `c2`, ...; a context manager: leaving it ends what runs there and takes the namespaces away."""

    folder: Path
    size: int
    batches: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    """The last one of each job."""
    network: NodeNetwork = field(init=False)

    def __enter__(self) -> Cluster:
        self.network = NodeNetwork(self.size).__enter__()
        self._make()
        return self

    def __exit__(self, *_: object) -> None:
        for batch in self.batches.values():
            batch.kill()
            batch.wait()
        for process in self.processes():
            process.kill()
        psutil.wait_procs(self.processes(), timeout=10)
        self.network.__exit__()

    # ---- nodes

    def name(self, number: int) -> str:
        return f"c{number}"

    def address(self, name: str) -> str:
        """Of a node; of this machine for the name `here`."""
        return self.network.here if name == "here" else self.network.address(int(name[1:]))

    def kill(self, number: int) -> None:
        """A node whose time is over: SIGKILL to all that runs there."""
        for process in self.processes(f"-{number - 1}"):
            process.kill()

    def preempt(self, job: int) -> None:
        """What Slurm (22.05, `proctrack/cgroup`) does to an allocation that another one is to have.

        SIGTERM to the tasks of its steps, for the step and for the job, and to the batch shell, all within some ten milliseconds.
        """
        for process in self.processes(f"-{job}-0"):
            parent = process.parent()
            if parent is not None and any(word.endswith("srun.py") for word in parent.cmdline()):
                for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGTERM):
                    process.send_signal(number)
        tell(self.batches[job])

    # ---- allocations

    def allocate(self, job: int, nodes: int, *words: str, state: Path, first: int = 1, **environment: str) -> subprocess.Popen[bytes]:
        """Begins an allocation of some nodes, or begins it again: its batch shell runs on the first of them."""
        members = [
            {"name": self.name(number), "netns": self.network.name(number), "tmp": str(self._tmp(number))}
            for number in range(first, first + nodes)
        ]
        described = self.folder / f"cluster-{job}.json"
        described.write_text(json.dumps({"nodes": members, "hosts": str(self.folder / "hosts")}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLSTREAM_", "SLURM"))}
        own = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "STAND_IN_CLUSTER": str(described),
            "PROJECT": str(self.folder / "project"),
            "SLURM_JOB_ID": str(job),
            "SLURMD_NODENAME": self.name(first),
            "ROLLSTREAM_STATE_DIR": str(state),
            "ROLLSTREAM_SANDBOX_BACKEND": "process",
        }
        with (self.folder / f"job-{job}.log").open("ab") as out:
            batch = subprocess.Popen(
                command_on(members[0], str(self.folder / "hosts"), ["bash", str(ROOT / "ops/slurm/node.sbatch"), *words]),
                env={**kept, **own, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.batches[job] = batch
        return batch

    def log(self, job: int) -> str:
        """What an allocation said."""
        return (self.folder / f"job-{job}.log").read_text(encoding="utf-8", errors="replace")

    def processes(self, ending: str = "") -> list[psutil.Process]:
        """What runs on nodes; with the end of a run folder's name, on that one."""
        found = []
        for process in psutil.process_iter():
            try:
                known = process.environ()
                if known.get("STAND_IN_CLUSTER", "").startswith(str(self.folder)) and known.get("ROLLSTREAM_RUN_DIR", "").endswith(ending):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    # ---- making and removing

    def _make(self) -> None:
        hosts = ["127.0.0.1 localhost"]
        for number in range(1, self.size + 1):
            hosts.append(f"{self.network.address(number)} {self.name(number)}")
            self._tmp(number).mkdir(mode=0o700)
        (self.folder / "hosts").write_text("\n".join([*hosts, ""]))
        self._write("bin/srun", f'exec {sys.executable} {ROOT / "tests/integration/slurm/srun.py"} "$@"')
        self._write("project/ops/launch", f'shift; cd {ROOT} && exec {sys.executable} -m ops.cli node run "$@"')
        self._write("project/.venv/bin/rollstream", f'cd {ROOT} && exec {sys.executable} -m ops.cli "$@"')
        shutil.copytree(ROOT / "ops/slurm", self.folder / "project/ops/slurm")

    def _write(self, name: str, line: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def _tmp(self, number: int) -> Path:
        return self.folder / f"tmp{number}"


def tell(batch: subprocess.Popen[bytes]) -> None:
    """What Slurm does some minutes before the end (`--signal=B:TERM@180`)."""
    batch.send_signal(signal.SIGTERM)
