"""What bounds a sandbox on this node, limit by limit: the map that goes into the job's record."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from workers.sandbox.limits.cgroups import SandboxCgroup

NOTHING = "nothing"
WATCHDOG = "watchdog"
LINUX = sys.platform == "linux"
PER_PROCESS = {
    "process memory": "RLIMIT_DATA",
    "process cpu": "RLIMIT_CPU",
    "file size": "RLIMIT_FSIZE",
    "open files": "RLIMIT_NOFILE",
    "core dumps": "RLIMIT_CORE",
}


def enforced_by(cgroup: SandboxCgroup | None, *, pid_max: bool, watched: bool, network: str, own_ipc: bool = False) -> Mapping[str, str]:
    """The map for one sandbox.

    Args:
        pid_max: whether the bound of its PID namespace was set.
        watched: whether a watchdog looks at it.
        network: `none`, `allow-list proxy` or `host`.
        own_ipc: whether its System V memory, semaphores and queues are bounded by a namespace of its own.
    """
    by_kernel = {name: f"cgroup v{controller.version}" for name, controller in (cgroup.controllers if cgroup else {}).items()}
    otherwise = WATCHDOG if watched else NOTHING
    return {
        "memory": by_kernel.get("memory", otherwise),
        "processes": "pid_max" if pid_max else by_kernel.get("pids", otherwise),
        "cpu": f"{WATCHDOG}, {by_kernel['cpu']}" if watched and "cpu" in by_kernel else otherwise,
        "disk": otherwise,
        "files": otherwise,
        **(PER_PROCESS if LINUX else {**PER_PROCESS, "process memory": NOTHING}),
        "system v ipc": "namespace" if own_ipc else NOTHING,
        "network": network,
    }
