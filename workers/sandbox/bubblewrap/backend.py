"""The command of bubblewrap for one sandbox.

The root is an overlay: the image below, read-only, and the sandbox's own folder above. Without an image it is a skeleton
(`local/node_root.py`) with the node's programs mounted into it. Every namespace is new, so there is no network but loopback; the user
inside has the uid it has outside and cannot make user namespaces of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from workers.sandbox.local.backend import GIVEN_INSIDE, SOCKETS_INSIDE, Place, Walls, refuse_network, walled_classes
from workers.sandbox.local.causes import ROOT_REFUSED
from workers.sandbox.local.environment import INSIDE_PATH, LANG, MARK
from workers.sandbox.local.kernel_surface import seccomp_filter
from workers.sandbox.local.node_root import NodeRoot
from workers.sandbox.network import NetworkRules
from workers.sandbox.spec import Isolation, SandboxSpec

SECCOMP_FD = 62
HOST_NAME = "sandbox"


class BubblewrapBackend:
    """Sandboxes built by one `bwrap`.

    Args:
        bwrap: the program, 0.11 or later (overlays), as `find_bwrap` found it.
        network: where sandboxes with a network may go; None = there are none.
    """

    name = "bubblewrap"

    def __init__(self, bwrap: Path, *, network: NetworkRules | None = None) -> None:
        self._bwrap = bwrap
        self.network = network
        self._node_root = NodeRoot()

    @property
    def isolation(self) -> frozenset[Isolation]:
        return walled_classes(self.network)

    def refuse(self, spec: SandboxSpec) -> str:
        if os.geteuid() == 0:
            return ROOT_REFUSED
        return refuse_network(spec, self.network)

    def command(self, place: Place, spec: SandboxSpec, image: Path | None, pid1: Sequence[str]) -> Walls | None:
        node = self._node_root if image is None else None
        lower = node.skeleton(place.folder / "root", place.workdir) if node is not None else image
        argv: list[str | Path] = [self._bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--as-pid-1"]
        argv += ["--hostname", HOST_NAME, "--overlay-src", str(lower), "--overlay", place.upper, place.work, "/"]
        argv += ["--proc", "/proc", "--dev", "/dev", "--bind", place.make_shared_memory(), "/dev/shm", "--remount-ro", "/dev"]
        argv += ["--bind", place.temporary, "/tmp", "--bind", place.var_temporary, "/var/tmp"]
        for folder in node.folders if node is not None else ():  # some may lie below the node's /tmp
            argv += ["--ro-bind", folder, folder]
        argv += ["--ro-bind", place.given, GIVEN_INSIDE, "--bind", place.sockets, SOCKETS_INSIDE]
        argv += ["--chdir", "/", "--clearenv"]
        for name, value in {"PATH": INSIDE_PATH, "LANG": LANG, MARK: place.folder.name}.items():
            argv += ["--setenv", name, value]
        seccomp = seccomp_filter(may_hide=True)
        argv += ["--seccomp", str(SECCOMP_FD)] if seccomp else []
        return Walls(
            argv=(*map(str, argv), "--", *pid1),
            env={MARK: place.folder.name},
            given={SECCOMP_FD: seccomp} if seccomp else {},
            inside_env=node.env if node is not None else {},
            mount_points=tuple(map(str, node.folders)) if node is not None else (),
            python=node.python if node is not None else "",
        )
