"""What a sandbox had on disk at one moment, kept so that others can begin from it.

    SCRATCH/ID    a folder as that of a parked sandbox (`folder.py`), with owner, spec and token of its own; nobody attaches to it

    take      processes are held still -> its layers are copied into `.new-ID` -> it gets its name -> processes go on
    restore   a new sandbox's folder is made -> the layers are copied into it -> its walls are built

1. A snapshot never changes, and does not need the sandbox it was taken of. It belongs to the job: whoever ends what is left of a job
   (the sweep, the janitor, the node agent, a plain start of a later attempt) ends its snapshots by the same words.
2. It has its name only when all is there and the sandbox it was taken of was still its attempt's: without a name it is nobody's.
3. A copy from a folder that was ended meanwhile may lack parts, so whether it was is asked after the copy.
4. All snapshots of a job together may occupy what one sandbox may: the one that would be too much is refused, and leaves nothing.
5. An earlier attempt than the latest seen at a snapshot is refused, as at a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

from workers.sandbox.errors import SandboxGone, SnapshotError
from workers.sandbox.local.folder import NEW_PREFIX, FolderState, SandboxFolder, job_prefix, remove_tree, sandbox_paths, write_json
from workers.sandbox.local.pause import to_its_end
from workers.sandbox.local.tree_copier import Copied, CopyError, copy_layers
from workers.sandbox.spec import Limits, SandboxOwner, Snapshot

LAYERS = ("home", "shm", "tmp", "upper", "var-tmp")
"""What a sandbox can change; which of them there are depends on the backend."""
UNBOUNDED = 2**62
_WHY = {
    "gone": "files changed while they were copied",
    "too_large": "no room left for it among the job's snapshots, which together may occupy what one sandbox may",
    "full": "the disk is full",
    "denied": "files cannot be copied",
}


class Snapshots:
    """The snapshots of one node's sandboxes.

    Args:
        floor_bytes: of free disk that copies leave.
    """

    def __init__(self, scratch_dir: Path, *, floor_bytes: int) -> None:
        self._scratch = scratch_dir
        self._floor_bytes = floor_bytes
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def take(self, folder: SandboxFolder, attempt: int, check: Callable[[], None]) -> Snapshot:
        """Copies the files of a sandbox that are held still.

        Args:
            check: raises when the sandbox has ended; called after the copy.

        Raises:
            SnapshotError, StaleAttempt, SandboxGone
        """
        job_id = folder.record.job_id
        turn = self._turns.setdefault(job_id, asyncio.Lock())
        async with turn:  # two at once would each find room for itself
            taken = _Unnamed(self._scratch, folder, attempt)
            try:
                spec, _ = await asyncio.to_thread(folder.wishes)
                await to_its_end(taken.make)
                room = await asyncio.to_thread(self._room, job_id, spec.limits)
                copied = await self._copy("take", folder, taken.path, room)
                check()
                return await to_its_end(partial(taken.name_it, copied))
            except BaseException:
                await to_its_end(taken.undo)
                raise

    def open(self, snapshot: Snapshot, owner: SandboxOwner) -> SandboxFolder:
        """The folder of a snapshot, for an attempt that may have it. Blocks.

        Raises:
            SandboxRefused, StaleAttempt, SandboxGone
        """
        folder = SandboxFolder.open(Path(snapshot.folder))
        folder.begin_from(owner, snapshot.token)
        return folder

    async def fill(self, folder: SandboxFolder, taken: SandboxFolder) -> None:
        """Gives a new sandbox the files of a snapshot.

        Raises:
            SnapshotError, SandboxGone
        """
        await self._copy("restore", taken, folder.path, Copied(bytes=UNBOUNDED, files=UNBOUNDED))
        await asyncio.to_thread(_check_there, taken)  # what was removed meanwhile may have lacked parts

    async def drop(self, taken: SandboxFolder) -> None:
        """Ends a snapshot. Sandboxes that began from it have their own files."""
        with contextlib.suppress(SandboxGone):
            await asyncio.to_thread(partial(taken.change_state, ended=True))
        await asyncio.to_thread(taken.remove)

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    async def _copy(self, what: Literal["take", "restore"], source: SandboxFolder, target: Path, room: Copied) -> Copied:
        bounds = {"max_bytes": room.bytes, "max_files": room.files, "floor_bytes": self._floor_bytes}
        try:
            return await copy_layers(what, source.path, target, LAYERS, **bounds)
        except CopyError as error:
            await asyncio.to_thread(_check_there, source)
            why = f"{_WHY[error.trouble]}: {error.detail}"
            raise SnapshotError(source.sandbox_id, why, retryable=error.trouble in ("gone", "full")) from error

    def _room(self, job_id: str, limits: Limits) -> Copied:
        """What one more may occupy."""
        left_bytes, left_files = limits.disk_bytes, limits.files
        for path in sandbox_paths(self._scratch, job_prefix(job_id)):
            with contextlib.suppress(SandboxGone):
                folder = SandboxFolder.open(path)
                state = folder.state()
                if folder.record.job_id == job_id and state.is_snapshot and not state.ended:
                    left_bytes -= state.snapshot_bytes
                    left_files -= state.snapshot_files
        return Copied(bytes=max(0, left_bytes), files=max(0, left_files))


class _Unnamed:
    """A snapshot in the making."""

    def __init__(self, scratch: Path, source: SandboxFolder, attempt: int) -> None:
        self._source = source
        self._attempt = attempt
        self._token = secrets.token_hex(16)
        self._id = f"{job_prefix(source.record.job_id)}{attempt}-{secrets.token_hex(3)}"
        self._named = scratch / self._id
        self.path = scratch / f"{NEW_PREFIX}{self._id}"

    def make(self) -> None:
        record = replace(
            self._source.record,
            attempt=self._attempt,
            created_s=time.time(),
            token_sha256=hashlib.sha256(self._token.encode()).hexdigest(),
            run_folder=str(self._source.run.with_name(self._id)),
        )
        self.path.mkdir(mode=0o700)
        write_json(self.path / "owner.json", asdict(record))
        (self.path / "spec.json").write_bytes((self._source.path / "spec.json").read_bytes())
        for name in ("lock", "lease"):
            (self.path / name).touch(mode=0o600)

    def name_it(self, copied: Copied) -> Snapshot:
        """The last step: afterwards it is there.

        Raises:
            StaleAttempt, SandboxGone: what it was taken of is its attempt's no more.
        """
        state = FolderState(seen_attempt=self._attempt, is_snapshot=True, snapshot_bytes=copied.bytes, snapshot_files=copied.files)
        write_json(self.path / "state.json", asdict(state))
        with self._source.checked(self._attempt):
            self.path.rename(self._named)
        record = self._source.record
        return Snapshot(backend=record.backend, node=record.node, snapshot_id=self._id, folder=str(self._named), token=self._token)

    def undo(self) -> None:
        """Removes it, named or not."""
        with contextlib.suppress(FileNotFoundError):
            self._named.rename(self.path)
        remove_tree(self.path)


def _check_there(folder: SandboxFolder) -> None:
    """Raises `SandboxGone` when it was ended."""
    with folder.checked():
        pass
