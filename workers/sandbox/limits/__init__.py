"""What a sandbox may use as a whole, and what holds it to that. Bounds on single processes are set by the holder as each starts.

`watchdog` looks at every sandbox of a process that owns some; `cgroups` lets the kernel do it where this user may; `enforced` says which
of them bounds what.
"""

from workers.sandbox.limits.cgroups import Cgroups, SandboxCgroup, find_cgroups
from workers.sandbox.limits.enforced import enforced_by
from workers.sandbox.limits.watch import Watch, Watched
from workers.sandbox.limits.watchdog import WATCHES, Watchdog

__all__ = ["WATCHES", "Cgroups", "SandboxCgroup", "Watch", "Watchdog", "Watched", "enforced_by", "find_cgroups"]
