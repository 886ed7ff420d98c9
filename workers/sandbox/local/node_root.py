"""The root of a sandbox without an image: the node's own programs, read-only, and nothing else of the node.

Mounted are `/usr`, what `/bin`, `/sbin` and `/lib*` are where they are folders of their own, some folders of `/etc` that programs need to
find each other and to trust a certificate, and the Python that this worker runs, so that a kernel runs inside. Made are the links of a
merged `/usr`, and the few files of `/etc` that libraries read; those that name users are written anew, with just the one there is.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
from functools import cached_property
from pathlib import Path

from workers.sandbox.local.environment import library_paths
from workers.sandbox.local.user_name import NAME, group_line, passwd_line

TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_FOLDERS = ("alternatives", "ssl", "pki", "ca-certificates", "ld.so.conf.d")
ETC_FILES = ("ld.so.cache", "ld.so.conf", "localtime", "ca-certificates.conf")
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"
HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"


class NodeRoot:
    """What this node offers; the same for all its sandboxes."""

    @property
    def python(self) -> str:
        return sys.executable

    @cached_property
    def env(self) -> dict[str, str]:
        """Where the worker's loader looks, as far as it is mounted."""
        kept = {}
        for name, value in library_paths().items():
            there = [folder for folder in value.split(":") if folder and _is_below(Path(folder), [Path("/usr"), *self._python_folders])]
            if there:
                kept[name] = ":".join(there)
        return kept

    def skeleton(self, folder: Path, home: str) -> Path:
        """Makes the lower layer: links, files of `/etc`, and nothing that is mounted. Blocks.

        Args:
            home: of the user, as inside.
        """
        etc = folder / "etc"
        if etc.exists():
            return folder
        fresh = folder.with_name(f".new-{folder.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / "etc").mkdir(parents=True)
        for name in TOP_FOLDERS:
            link = Path("/", name)
            if link.is_symlink():
                (fresh / name).symlink_to(os.readlink(link))
        made = {
            "passwd": f"{passwd_line(NAME, home)}\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
            "group": f"{group_line(NAME)}\nnogroup:x:65534:\n",
            "hosts": HOSTS,
            "nsswitch.conf": NSSWITCH,
        }
        for name, text in made.items():
            (fresh / "etc" / name).write_text(text)
        for name in ETC_FILES:
            source = Path("/etc", name)
            if source.is_file() and os.access(source, os.R_OK):
                shutil.copyfile(source, fresh / "etc" / name)
        fresh.rename(folder)
        return folder

    @cached_property
    def folders(self) -> list[Path]:
        """What is mounted read-only over the skeleton, at the very same path."""
        folders = [Path("/usr"), *(Path("/", name) for name in TOP_FOLDERS if not Path("/", name).is_symlink())]
        folders += [Path("/etc", name) for name in ETC_FOLDERS]
        folders += self._python_folders
        return [folder for folder in folders if folder.is_dir()]

    @cached_property
    def _python_folders(self) -> list[Path]:
        """The environment of this Python, the installation it was made from, and where its packages are."""
        wanted = [Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent]
        wanted += [Path(folder) for folder in site.getsitepackages()]
        wanted += [Path(folder) for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))]
        folders: list[Path] = []
        for folder in sorted({path.absolute() for path in wanted if path.is_dir()}, key=lambda path: len(path.parts)):
            if not _is_below(folder, [Path("/usr"), *folders]):
                folders.append(folder)
        return folders


def _is_below(path: Path, folders: list[Path]) -> bool:
    return any(path == folder or folder in path.parents for folder in folders)
