"""The files of one data directory, and the folder of its sockets.

In the data directory:

| name | what |
| --- | --- |
| `instance.lock` | exclusive: keeper, guard, server and forks of the server hold it together; free means that none of them lives |
| `users.lock` | shared: held by every user for its life; the keeper waits for it exclusively, and gets it when the last user is gone |
| `start.lock` | exclusive, short: who starts a keeper; the others wait and find it running |
| `sockets` | link to the folder of the sockets, which is elsewhere because a socket's path must be short |
| `server.log`, `keeper.log` | with `.1` to `.3` from earlier starts |
| `appendonlydir/` | the data |

The folder of the sockets is `<run>/e<identity>-<random>`. Identity is a hash of the directory's device and inode, so that a copied data
directory, which brings its link along, does not lead to the original's server, and a moved one still finds its own. The random part is made
once, so that a directory removed and made again under the same inode does not share sockets with its former self. The path stays the same
over restarts, as clients reconnect to it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from pipeline.folders import make_private_folder, socket_path


@dataclass(frozen=True, slots=True)
class DataPlaces:
    """Paths within one data directory."""

    data_dir: Path

    @property
    def instance_lock(self) -> Path:
        """Held by keeper, guard and server."""
        return self.data_dir / "instance.lock"

    @property
    def users_lock(self) -> Path:
        """Shared by the users."""
        return self.data_dir / "users.lock"

    @property
    def start_lock(self) -> Path:
        """Held by who starts a keeper."""
        return self.data_dir / "start.lock"

    @property
    def server_log(self) -> Path:
        """Written by the server."""
        return self.data_dir / "server.log"

    @property
    def keeper_log(self) -> Path:
        """Written by the keeper."""
        return self.data_dir / "keeper.log"

    @property
    def sockets_link(self) -> Path:
        """Points to the folder of the sockets."""
        return self.data_dir / "sockets"

    def linked_sockets(self) -> SocketPlaces | None:
        """The sockets where the last keeper made them; None when there never was one, or the link was copied from another directory."""
        try:
            folder = Path(os.readlink(self.sockets_link))
        except FileNotFoundError:
            return None
        return SocketPlaces(folder) if folder.name.startswith(self._sockets_prefix()) else None

    def _sockets_prefix(self) -> str:
        facts = self.data_dir.stat()
        return f"e{hashlib.sha256(f'{facts.st_dev}:{facts.st_ino}'.encode()).hexdigest()[:8]}-"

    def make_sockets(self, run_dir: Path) -> SocketPlaces:
        """Makes the folder of the sockets under `run_dir`, the same one as before if it was there; needs the instance lock.

        Raises:
            FolderError: the run folder is not private to us, or too long for a socket.
        """
        linked = self.linked_sockets()
        keeps = linked is not None and linked.folder.parent == run_dir
        sockets = linked if linked is not None and keeps else SocketPlaces(run_dir / f"{self._sockets_prefix()}{secrets.token_hex(3)}")
        make_private_folder(run_dir)
        make_private_folder(sockets.folder)
        socket_path(sockets.folder, sockets.control.name)
        if not keeps:
            fresh = self.data_dir / "sockets.new"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(sockets.folder)
            fresh.replace(self.sockets_link)
        return sockets


@dataclass(frozen=True, slots=True)
class SocketPlaces:
    """Paths within the folder of the sockets."""

    folder: Path

    @property
    def control(self) -> Path:
        """Where the keeper answers its users."""
        return self.folder / "keeper.sock"

    @property
    def server(self) -> Path:
        """Where the server listens."""
        return self.folder / "redis.sock"
