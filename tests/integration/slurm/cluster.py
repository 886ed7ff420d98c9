"""Some "nodes" on this machine: network namespaces on a bridge, and allocations of them that run ops/slurm/node.sbatch."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.integration.slurm.srun import command_on

ROOT = Path(__file__).resolve().parents[3]


class NoNamespaces(Exception):
    """Network namespaces cannot be made here; says why."""


def ip(*words: str) -> None:
    """`ip WORDS`."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(slots=True)
class Cluster:
    """Nodes `c1`, `c2`, ...; a context manager: leaving it ends what runs there and takes the namespaces away."""

    folder: Path
    size: int
    word: str = field(default_factory=lambda: secrets.token_hex(2))
    batches: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Cluster:
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
            raise NoNamespaces("network namespaces need root, ip and nsenter")
        try:
            self._make()
        except NoNamespaces:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for batch in self.batches:
            batch.kill()
            batch.wait()
        for process in self.processes():
            process.kill()
        psutil.wait_procs(self.processes(), timeout=10)
        self._remove()

    # ---- nodes

    def name(self, number: int) -> str:
        return f"c{number}"

    def address(self, name: str) -> str:
        """Of a node; of this machine for the name `here`."""
        return f"10.77.{int(self.word[:2], 16)}.{1 if name == 'here' else 10 + int(name[1:])}"

    def cut(self, number: int) -> None:
        """Takes a node off the network; what runs there goes on."""
        ip("link", "set", self._outer(number), "down")

    def join(self, number: int) -> None:
        """Brings it back."""
        ip("link", "set", self._outer(number), "up")

    def kill(self, number: int) -> None:
        """A node whose time is over: SIGKILL to all that runs there."""
        for process in self.processes(f"-{number - 1}"):
            process.kill()

    # ---- allocations

    def allocate(self, job: int, nodes: int, *words: str, state: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Begins an allocation of the first nodes: its batch shell runs on the first of them."""
        members = [
            {"name": self.name(number), "netns": self._netns(number), "tmp": str(self._tmp(number))} for number in range(1, nodes + 1)
        ]
        described = self.folder / f"cluster-{job}.json"
        described.write_text(json.dumps({"nodes": members, "hosts": str(self.folder / "hosts")}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLSTREAM_", "SLURM"))}
        own = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "STAND_IN_CLUSTER": str(described),
            "PROJECT": str(self.folder / "project"),
            "SLURM_JOB_ID": str(job),
            "SLURMD_NODENAME": self.name(1),
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
        self.batches.append(batch)
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
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", f"{self.address('here')}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        hosts = ["127.0.0.1 localhost"]
        for number in range(1, self.size + 1):
            netns, inner = self._netns(number), f"i{self.word}{number}"
            ip("netns", "add", netns)
            ip("link", "add", self._outer(number), "type", "veth", "peer", "name", inner)
            ip("link", "set", self._outer(number), "master", self._bridge, "up")
            ip("link", "set", inner, "netns", netns)
            ip("-n", netns, "addr", "add", f"{self.address(self.name(number))}/24", "dev", inner)
            ip("-n", netns, "link", "set", inner, "up")
            ip("-n", netns, "link", "set", "lo", "up")
            hosts.append(f"{self.address(self.name(number))} {self.name(number)}")
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

    def _remove(self) -> None:
        for words in (*(("netns", "del", self._netns(number)) for number in range(1, self.size + 1)), ("link", "del", self._bridge)):
            subprocess.run(["ip", *words], capture_output=True, check=False)

    @property
    def _bridge(self) -> str:
        return f"rsb{self.word}"

    def _netns(self, number: int) -> str:
        return f"rs{self.word}-{number}"

    def _outer(self, number: int) -> str:
        return f"o{self.word}{number}"

    def _tmp(self, number: int) -> Path:
        return self.folder / f"tmp{number}"


def tell(batch: subprocess.Popen[bytes]) -> None:
    """What Slurm does some minutes before the end (`--signal=B:TERM@180`)."""
    batch.send_signal(signal.SIGTERM)
