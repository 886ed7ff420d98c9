"""To start a program as a child, without walls around it or outside of them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import becoming


def prepare(limits: Mapping[str, int], groups: Sequence[str] = (), *, follows_parent: bool = True) -> Callable[[], None]:
    """What a new child does to itself just before it becomes the program.

    Args:
        groups: control groups that it goes into.
        follows_parent: it is our child, and the kernel kills it when we end; behind walls PID 1 sees to that.
    """
    parent = os.getpid()

    def in_the_child() -> None:
        becoming.join_groups(groups)
        if follows_parent:
            becoming.follow(parent)
            becoming.set_oom_score()
        becoming.default_signals()
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, kind in becoming.LIMITS.items():
            hard = resource.getrlimit(kind)[1]
            wanted = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
            with contextlib.suppress(OSError, ValueError):  # macOS refuses some
                resource.setrlimit(kind, (wanted, wanted))
        for name, most in becoming.COUNTED_BY_USER.items():
            counted = getattr(resource, name, None)
            if counted is not None and not 0 <= resource.getrlimit(counted)[1] < most:
                resource.setrlimit(counted, (most, most))
        with contextlib.suppress(OSError):
            os.nice(limits["nice"])

    return in_the_child


def start(argv: list[str], env: Mapping[str, str], cwd: str, places: Mapping[int, int], prepared: Callable[[], None]) -> int:
    """Forks a child that becomes the program, in a session of its own; `places` are the descriptors by the numbers it sees.

    Raises:
        OSError: what kept it from that; no child is left.
    """
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            becoming.enter(cwd)
            error_write = becoming.put_in_place(places, error_write)
            prepared()
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            becoming.tell(error_write, error)
        finally:
            os._exit(126)
    os.close(error_write)
    try:
        becoming.hear(error_read)
    except OSError:
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(error_read)
    return pid


def start_on_terminal(request: Mapping[str, Any], given: Sequence[int], library: str) -> tuple[int, int]:
    """Starts a program on a terminal of its own; returns it and the master side.

    Raises:
        OSError: what kept it from that.
    """
    if library not in sys.path:
        sys.path.append(library)
    from ptyprocess import PtyProcess

    ourselves = os.getpid()
    places = request["fds"]
    parked: list[int] = []
    try:
        for number, place in zip(given, places, strict=True):
            os.dup2(number, place, inheritable=False)
            parked.append(place)
        os.environ["PATH"] = request["env"].get("PATH", os.defpath)  # where ptyprocess looks for the program
        prepared = prepare(request["limits"], request["groups"])

        def in_the_child() -> None:
            becoming.enter(request["cwd"])
            prepared()
            for place in places:
                os.set_inheritable(place, True)

        terminal = PtyProcess.spawn(
            request["argv"],
            env=request["env"],
            echo=False,
            preexec_fn=in_the_child,
            dimensions=(request["rows"], request["columns"]),
            pass_fds=places,
        )
    except Exception as error:  # ptyprocess hands on the child's by name and text
        raise OSError(getattr(error, "errno", None) or errno.ENOENT, str(error)) from error
    finally:
        if os.getpid() != ourselves:
            os._exit(126)  # an exception of the child that ptyprocess let through: there must not be two of us
        for place in parked:
            os.close(place)
    master = os.dup(terminal.fd)
    terminal.fileobj.close()  # its destructor closes a descriptor by number otherwise, which may be another's by then
    terminal.closed, terminal.fd = True, -1
    return terminal.pid, master
