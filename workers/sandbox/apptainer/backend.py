"""The command of Apptainer for one sandbox.

It is run once, to build the walls, and always through user namespaces, also where the installation is setuid: what a setuid program built
could not be entered. Its own PID 1 (`appinit`) is left out, so the keeper is PID 1.

What a site or a user may have configured to be let in is kept out, one by one (`NOT_MOUNTED`), and where the installation allows it, by a
configuration of our own. The command itself starts with an environment built here: Apptainer passes `*_proxy` with its password, and each
`APPTAINERENV_NAME`, into the container whatever it is told about the rest. What it adds to the environment by itself (names and paths of
this node) is taken away by a first bash (`_CLEAN`), before PID 1 becomes the keeper.

An image is a folder or a SIF file. The layers above a folder are mounted by the holder before Apptainer runs (`Walls.overlay`), which gets
them as one writable folder: an overlay of its own cannot remove or replace a folder of the image. A SIF is mounted by Apptainer alone,
through FUSE; its files belong to whoever packed it, and can mostly only be read: the image store unpacks them for that reason.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from workers.sandbox.errors import SandboxStartError
from workers.sandbox.local.backend import GIVEN_INSIDE, SOCKETS_INSIDE, Overlay, Place, Walls, refuse_network, walled_classes
from workers.sandbox.local.causes import ROOT_REFUSED
from workers.sandbox.local.environment import INSIDE_PATH, LANG, MARK
from workers.sandbox.local.holder.keeper import HOLD_FD, READY_FD
from workers.sandbox.local.node_root import NodeRoot
from workers.sandbox.network import NetworkRules
from workers.sandbox.spec import Isolation, SandboxSpec

HOST_NAME = "sandbox"
NOT_MOUNTED = ("home", "cwd", "tmp", "sys", "hostfs", "bind-paths")
"""What the default, or the site's configuration, would mount: the first four are ours to give or not, the last two are the node's files."""
WALLS = (
    "--userns",
    "--containall",
    "--no-init",
    "--no-home",
    "--no-mount",
    ",".join(NOT_MOUNTED),
    "--cleanenv",
    "--net",
    "--network",
    "none",
)
"""For every sandbox; the probe tries them one after the other."""
HELPERS = ("squashfuse_ll", "squashfuse", "fuse-overlayfs", "fuse2fs")
HELPERS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where Apptainer looks for squashfuse and fuse-overlayfs."""
CONFIGURATION = """\
allow setuid = no
allow user ns = yes
allow pid ns = yes
allow ipc ns = yes
allow uts ns = yes
config passwd = no
config group = no
config resolv_conf = no
mount proc = yes
mount sys = no
mount dev = minimal
mount devpts = yes
mount home = no
mount tmp = no
mount hostfs = no
mount slave = yes
user bind control = yes
enable overlay = yes
enable underlay = yes
allow container sif = yes
allow container squashfs = yes
allow container dir = yes
sessiondir max size = 16
memory fs type = tmpfs
"""
"""All that is mounted is on the command line: a file of `/etc` that Apptainer fills in would be no file of the sandbox, and what is written
to it lost when the sandbox is parked. `sessiondir max size` (MiB) bounds what a sandbox can put into memory through `/dev`."""
_CLEAN = (
    'for name in $(compgen -e); do unset "$name"; done; for fd in /proc/self/fd/*; do fd=${fd##*/}; '
    'case " $1 " in *" $fd "*) ;; *) eval "exec $fd>&-" ;; esac; done; shift; '
    'while [ "$1" != -- ]; do export "$1"; shift; done; shift; exec "$@"'
)
"""A bash script: NUMBERS of descriptors to keep, NAME=VALUE..., --, the command that PID 1 becomes."""
_UNUSABLE = re.compile(r"[:,\\\s\"']")
"""What means something in the value of `--bind` or `--overlay`."""


class ApptainerBackend:
    """Sandboxes built by one `apptainer exec`.

    Args:
        program: Apptainer or Singularity, as `find_apptainer` found it.
        own_configuration: whether it takes a configuration of ours, which a setuid installation does not.
        network: where sandboxes with a network may go; None = there are none.
    """

    name = "apptainer"

    def __init__(self, program: Path, *, own_configuration: bool = True, network: NetworkRules | None = None) -> None:
        self._program = program
        self._own_configuration = own_configuration
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
        for path in (place.folder, place.given, place.sockets):
            if found := _UNUSABLE.search(str(path)):
                raise SandboxStartError(self.name, f"Apptainer cannot be given the path {path}: it holds {found[0]!r}", retryable=False)
        node = self._node_root if image is None else None
        lower = image if image is not None else self._node_root.skeleton(place.folder / "root", place.workdir)
        overlay = Overlay(lower=lower, upper=place.upper, work=place.work, at=place.make_merged()) if lower.is_dir() else None
        root = ["--writable", overlay.at] if overlay is not None else ["--overlay", place.folder, lower]
        mounts = [
            (place.temporary, "/tmp", ""),
            (place.var_temporary, "/var/tmp", ""),
            (place.make_shared_memory(), "/dev/shm", ""),
            (place.given, GIVEN_INSIDE, ":ro"),
            (place.sockets, SOCKETS_INSIDE, ""),
            *((folder, str(folder), ":ro") for folder in (node.folders if node is not None else ())),
        ]
        argv: list[str | Path] = [self._program, "--quiet"]
        if self._own_configuration:
            argv += ["--config", _write_configuration(place.folder)]
        argv += ["exec", *WALLS, "--hostname", HOST_NAME, "--pwd", "/"]
        for outside, inside, options in mounts:
            argv += ["--bind", f"{outside}:{inside}{options}"]
        inside_env = {"PATH": INSIDE_PATH, "LANG": LANG, MARK: place.folder.name}
        kept = " ".join(str(number) for number in (0, 1, 2, READY_FD, HOLD_FD))
        clean = ["bash", "--norc", "-p", "-c", _CLEAN, "rollstream-start", kept]
        clean += [f"{name}={value}" for name, value in inside_env.items()]
        return Walls(
            argv=(*map(str, (*argv, *root)), *clean, "--", *pid1),
            env={"PATH": f"{_mark_helpers(place.folder)}:{HELPERS_PATH}", "LANG": "C", "HOME": str(place.folder), MARK: place.folder.name},
            inside_env=node.env if node is not None else {},
            mount_points=tuple(map(str, node.folders)) if node is not None else (),
            overlay=overlay,
            python=node.python if node is not None else "",
        )


def _write_configuration(folder: Path) -> Path:
    """Beside what the sandbox can write, not in it."""
    path = folder / "apptainer.conf"
    path.write_text(CONFIGURATION, encoding="ascii")
    return path


def _mark_helpers(folder: Path) -> Path:
    """A folder with the programs that Apptainer mounts files through, each with the sandbox's mark: Apptainer starts them with an empty
    environment, and one whose holder is killed in the moment before it is recorded is found by that alone."""
    marked = folder / "helpers"
    marked.mkdir(mode=0o700, exist_ok=True)
    for name in HELPERS:
        program = shutil.which(name, path=HELPERS_PATH)
        if program is not None:
            script = marked / name
            script.write_text(f'#!/bin/sh\nexport {MARK}={folder.name}\nexec {program} "$@"\n', encoding="ascii")
            script.chmod(0o700)
    return marked
