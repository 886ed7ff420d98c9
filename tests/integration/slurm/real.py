"""A real Slurm on this machine: `slurmctld`, and a `slurmd` in the network namespace of each "node" of a `Cluster`.

Processes are tracked by control groups, as sites do: so a task gets a signal, and not what it has started. It was written with Debian's
packages `slurm-wlm` (22.05) and `munge`. Jobs are root's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.testing import wait_until
from tests.integration.slurm.cluster import ROOT, Cluster
from tests.integration.slurm.srun import command_on

DAEMONS = ("munged", "slurmctld", "slurmd")
START_S = 60.0
CONFIG = """
ClusterName=rollstream
SlurmctldHost={host}({here})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=30
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 OverSubscribe=EXCLUSIVE
PartitionName=high Nodes=ALL PriorityTier=10 OverSubscribe=EXCLUSIVE
"""


@dataclass(slots=True)
class RealSlurm:
    """Its daemons; a context manager that ends them."""

    cluster: Cluster
    folder: Path = field(init=False)
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> RealSlurm:
        self.folder = self.cluster.folder / "slurm"
        (self.folder / "state").mkdir(parents=True)
        (self.cluster.folder / "bin/srun").unlink()  # the stand-in
        cluster, host = self.cluster, os.uname().nodename
        names = [cluster.name(number) for number in range(1, cluster.size + 1)]
        with (cluster.folder / "hosts").open("a") as hosts:
            hosts.write(f"{cluster.address('here')} {host}\n")
        nodes = "\n".join(f"NodeName={name} NodeAddr={cluster.address(name)} CPUs=2 RealMemory=1000 State=UNKNOWN" for name in names)
        (self.folder / "slurm.conf").write_text(CONFIG.format(host=host, here=cluster.address("here"), folder=self.folder, nodes=nodes))
        (self.folder / "cgroup.conf").write_text("")
        self._start("munged", "--foreground", "--force", *self._munge())
        self._start("slurmctld", "-D")
        for number, name in enumerate(names, start=1):
            node = {"name": name, "netns": cluster.network.name(number)}
            (self.folder / name).mkdir()
            self._start(*command_on(node, str(cluster.folder / "hosts"), ["slurmd", "-D", "-N", name]))
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["scancel", "--user=root"], env=self._environment, capture_output=True, check=False)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()

    async def until_idle(self) -> None:
        """All nodes are there, and free."""

        def are_idle() -> bool:
            return self._say("sinfo", "--noheader", "--format=%T %D", "--partition=low") == f"idle {self.cluster.size}"

        await wait_until(are_idle, f"Slurm's nodes are idle: {self._say('sinfo')}", timeout_s=START_S)

    def submit(self, nodes: int, *words: str, partition: str = "low", state: Path | None = None, **environment: str) -> int:
        """`sbatch`; with a state folder of our template, else of `words`. Answers the number of the job."""
        ours = [str(ROOT / "ops/slurm/node.sbatch"), *words] if state else ["--wrap", *words]
        own = {"PROJECT": str(self.cluster.folder / "project"), "ROLLSTREAM_SANDBOX_BACKEND": "process"}
        own["TMPDIR"] = str(self.cluster.folder)  # numbers of jobs begin with 1 in each of these
        own |= {"ROLLSTREAM_STATE_DIR": str(state)} if state else {}
        out = str(self.cluster.folder / "job-%j.log")
        command = ["sbatch", "--parsable", f"--partition={partition}", f"--nodes={nodes}", "--time=20", f"--output={out}", *ours]
        return int(self._say(*command, **own, **environment))

    def state(self, job: int) -> str:
        """`RUNNING`, `PENDING`, `COMPLETING`, `COMPLETED`, ..."""
        return self._say("squeue", "--noheader", "--format=%T", f"--jobs={job}", "--states=all")

    def is_over(self, job: int) -> bool:
        """Well."""
        state = self.state(job)
        assert state not in ("FAILED", "NODE_FAIL", "TIMEOUT", "CANCELLED"), state
        return state == "COMPLETED"

    def tell(self, job: int) -> None:
        """What Slurm does some minutes before the time limit (`--signal=B:TERM@180`)."""
        self._say("scancel", "--batch", "--signal=TERM", str(job))

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLSTREAM_", "SLURM"))}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def _say(self, *command: str, **environment: str) -> str:
        done = subprocess.run(command, env={**self._environment, **environment}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def _munge(self) -> list[str]:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)
        parts = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        return [f"--{option}={self.folder / f'munge.{end}'}" for option, end in parts.items()]

    def _start(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as out:
            self._daemons.append(
                subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            )


def missing() -> list[str]:
    """Daemons that are not installed."""
    return [name for name in DAEMONS if shutil.which(name) is None]
