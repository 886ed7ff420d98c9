"""The process under which everything of one attachment runs, and what it is made of.

    worker ── control socket (our fd 0) ──> holder ──> bash, kernels, commands ──> whatever those start
                                              ├─ holds the leases: descriptors with a flock, never handed to children
                                              └─ with walls: command of the backend ──> keeper, PID 1 of the sandbox (`keeper.py`)

0. It belongs to a sandbox from `hold` on, once and for good; until then it may be kept ready (`spare_holder.py`).
1. Everything started here stays below us: we are a subreaper (Linux), so what daemonises is re-parented to us, not to PID 1.
2. The control socket closes when the worker ends, however it ends. Then, and on `stop`, and on SIGTERM, we kill all descendants and
   exit only when none is left; so a free lease means that nothing of the attachment runs. These are heard whatever else is waited for.
3. We reap every child, ours and adopted, and nobody else's exit code: no other code waits in this process.
4. Should we be killed ourselves, the children get SIGKILL from the kernel (PR_SET_PDEATHSIG); who looks for the rest finds them by the
   children file and by the mark in their environment. With walls the keeper sees us go, and the kernel ends its whole PID namespace.
5. With walls (`boot`) what is started afterwards is started inside: a child of ours enters the keeper's namespaces (`entering.py`), and
   leaves a child there which becomes the program. Numbers of processes are ours, not the sandbox's. When PID 1 ends, so do we.
   Where nobody enters (`entered` is false) PID 1 is the execution server of ADR 20: it starts what runs inside, and is told (`told`,
   through the socket it lives by) what shows it its worker.

One thread, standard library, and `ptyprocess` for terminals where there are no walls. Nothing of Rollstream is imported outside of this
folder, which the process loads as the package `holder`: so its imports are relative, and each costs the start of every sandbox.
Without /proc (macOS) there is no subreaper: process groups are killed, and a daemon that left its group escapes.

Frames both ways: length (4 bytes, big endian), JSON; descriptors travel beside the first byte of their frame.
    {"op": "hold", "id", "children_file", "fds": one for each lease, the log}
                                       -> {"id", "pid": its own, "fds": 0} or {"id", "errno", "error"}
    {"op": "boot", "id", "argv", "env", "fds": [numbers], "seccomp": hex, "timeout_s", "limits": {...}, "told": hex, "entered": bool,
     "overlay": [lower, upper, work, at] or []}
                                       -> {"id", "pid": of PID 1, "fds": 0, "bounds": [of `bounding.py`]} or {"id", "errno", "error"}
    {"op": "spawn"|"pty", "id", "argv", "env", "cwd", "fds": [numbers], "limits": {...}, "groups": [files], "rows", "columns",
     "outside": bool}
                                                       -> {"id", "pid", "fds"} or {"id", "errno", "error"}
    {"op": "kill", "pid", "signal", "scope"}           no answer
    {"op": "stop", "grace_s"}                          -> {"event": "stopped"}, then the end; what is not answered by then never is
    {"event": "ready"}, {"event": "exit", "pid", "code"}, {"event": "walls_ended"}
"""
