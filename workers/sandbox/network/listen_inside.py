"""Opens a listening socket in a sandbox's network and hands it out: `python -I -S listen_inside.py ENTERING PID PORT`, our socket as fd 0.

A socket belongs to the network namespace it was made in, for good. So this process joins the namespace of PID (after the user namespace
that owns it), binds the loopback address there, passes the descriptor back and ends: nothing of ours stays inside, and nothing inside can
end what serves it. ENTERING is the path of `entering.py`. Standard library only; imports nothing of Rollstream.
"""

from __future__ import annotations

import array
import importlib.util
import os
import socket
import sys

BACKLOG = 128


def main() -> None:
    path, pid, port = sys.argv[1:4]
    spec = importlib.util.spec_from_file_location("entering", path)
    assert spec is not None
    assert spec.loader is not None
    entering = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(entering)
    answer = socket.socket(fileno=os.dup(0))
    entering.hide()
    namespaces = entering.Namespaces(int(pid))
    namespaces.join(("net",))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(BACKLOG)
    answer.sendmsg([b"l"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])


if __name__ == "__main__":
    main()
