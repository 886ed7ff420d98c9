"""PID 1 of a sandbox with walls: a bash that says when the root is complete, and then lives until its holder lets go.

1. It writes one byte to `READY_FD` when the walls stand. Until then nothing enters.
2. It reads `HOLD_FD`, one end of a socket pair whose other end only the holder has. When that closes, however the holder ended, bash
   ends, and the kernel ends all of its PID namespace. A socket and no pipe: what runs inside could open a pipe of PID 1 by
   `/proc/1/fd`, and hold it.
3. PID 1 is deaf to signals from its own namespace, so nothing inside ends it. As any bash it reaps what is orphaned to it.
4. Its environment is ours alone (no `BASH_ENV`), its descriptors are `/dev/null` and the socket.
"""

from __future__ import annotations

READY_FD, HOLD_FD = 60, 61
"""Whoever builds the walls must pass these two on."""

_SCRIPT = (
    'trap "" HUP INT TERM QUIT PIPE USR1 USR2; [ -d "$1" ] || mkdir -p -- "$1"; exec </dev/null >/dev/null 2>&1; '
    f"echo r >&{READY_FD}; exec {READY_FD}>&-; while read -r _ <&{HOLD_FD}; do :; done"
)


def keeper_argv(workdir: str) -> list[str]:
    """The command line of PID 1; it makes the working folder when it is missing, where paths mean what they mean inside."""
    return ["bash", "--noprofile", "--norc", "-c", _SCRIPT, "rollstream-keeper", workdir]
