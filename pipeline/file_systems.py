"""Which file system holds a path, and whether machines share it or a reboot empties it.

Why it matters: an append-only file on NFS loses acknowledged writes (fsync and rename mean less there), file locks on network and
pass-through file systems may hold on one machine only, and Unix sockets do not work across them. So data and sockets are refused there,
and scratch is warned about.

The kernel is asked (`statfs`), never the name of the folder. Linux answers with a magic number, macOS with a name and a "local" flag.
FUSE has one number for everything, so there the mount table gives the subtype; an unknown FUSE file system counts as shared, because
that errs to the safe side.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_NETWORK_MAGIC = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x01021997: "9p",  # also how WSL 2 shows the Windows drives
    0x564C: "ncp",
    0x5346414F: "afs",
    0x6B414653: "kafs",
    0x73757245: "coda",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x20030528: "orangefs",
    0xBEEFDEAD: "snfs",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
}
_LOCAL_MAGIC = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x794C7630: "overlay",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x4D44: "vfat",
}
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_FUSE_MAGIC = 0x65735546
_LOCAL_FUSE = frozenset(
    {"fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.ntfs", "fuse.exfat", "fuse.ext2", "fuse.ext4", "fuse.zfs", "fuse.bindfs"}
)
_MNT_LOCAL = 0x1000
"""macOS: the flag that the kernel sets on file systems stored on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """What holds a path."""

    name: str
    """As the system calls it: `ext4`, `nfs`, `fuse.sshfs`, or the magic number in hex where we know no name."""
    is_network: bool
    """Other machines can share it, or it passes through to another system: no data, locks or sockets there."""
    is_volatile: bool = False
    """It lives in memory: a reboot empties it."""


def nearest_existing(path: Path) -> Path:
    """The path itself, or the closest folder above it that is there; what a file system question about a future folder is asked of."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def file_system_of(path: Path) -> FileSystem:
    """The file system that holds `path`, or would hold it once it is made.

    Raises:
        OSError: the kernel could not say.
    """
    path = nearest_existing(path)
    if sys.platform == "darwin":
        return _darwin_file_system(path)
    magic = _linux_magic(path)
    if magic == _FUSE_MAGIC:
        name = _mounted_type(path) or "fuse"
        return FileSystem(name=name, is_network=name not in _LOCAL_FUSE)
    if magic in _NETWORK_MAGIC:
        return FileSystem(name=_NETWORK_MAGIC[magic], is_network=True)
    name = _LOCAL_MAGIC.get(magic, f"0x{magic:x}")
    return FileSystem(name=name, is_network=False, is_volatile=name in _VOLATILE)


def _statfs(path: Path, symbol: str) -> ctypes.Array[ctypes.c_char]:
    """The raw answer of `statfs`; the buffer is larger than the struct of any system we know."""
    buffer = ctypes.create_string_buffer(4096)
    call = getattr(ctypes.CDLL(None, use_errno=True), symbol)
    if call(os.fsencode(path), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return buffer


def _linux_magic(path: Path) -> int:
    """`f_type`, the first field; a signed long whose upper half means nothing."""
    return ctypes.c_long.from_buffer(_statfs(path, "statfs")).value & 0xFFFFFFFF


def _mounted_type(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of the mount that holds `path`, by device number, as the mount table names it."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:  # no /proc: the caller then takes it as a FUSE file system nobody knows
        return None
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and fields[2] == wanted and "-" in fields:
            return fields[fields.index("-") + 1]
    return None


def _darwin_file_system(path: Path) -> FileSystem:
    """Field offsets of `struct statfs` with 64-bit inodes: flags at 64, type name (16 bytes) at 72."""
    symbol = "statfs$INODE64" if os.uname().machine == "x86_64" else "statfs"
    buffer = _statfs(path, symbol)
    flags = ctypes.c_uint32.from_buffer(buffer, 64).value
    name = buffer.raw[72:88].split(b"\0", 1)[0].decode("ascii", "replace")
    return FileSystem(name=name or "unknown", is_network=not flags & _MNT_LOCAL)
