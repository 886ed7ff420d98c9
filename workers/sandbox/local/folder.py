"""The folder of one sandbox: what it is, whose it is, and who may have it. Everything here blocks; callers use a thread.

    SCRATCH/ID/owner.json   written before the folder has its name; never changes
               given.json   whose it is, where it was made for nobody in particular; written once (`give`), and goes before owner.json
               spec.json    what it was asked to be; never changes
               state.json   attempt seen, holder, whether the last attachment changed anything; only under the flock of `lock`
               lease        flocked by the holder of the attachment, for as long as it lives
               children     PID STARTED of what the holder started
               tmp/         the sandbox's own /tmp
               home/        its working folder, without walls
               upper/ work/ var-tmp/   what it changed, the overlay's own, its /var/tmp, with walls
               merged/      empty; where its layers are one, for the command that builds the walls and nobody else
    RUN/ID/g/               what we give to shells and kernels
           s/               sockets of kernels; elsewhere because their paths must be short

1. A folder without its final name (`.new-`, `.trash-`) is nobody's: it may be deleted.
2. The attempt seen only rises, also by an attach that is refused for another reason.
3. `changed_by` is set on disk before an attachment's first effect and cleared by `park`: whoever comes after a loss can tell.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import itertools
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from pipeline.failpoints import failpoint
from workers.sandbox.errors import SandboxBusy, SandboxGone, SandboxRefused, StaleAttempt
from workers.sandbox.local.backend import Place
from workers.sandbox.local.identity import ProcessIdentity, machine_boot
from workers.sandbox.local.user_name import give_name
from workers.sandbox.spec import Isolation, Limits, SandboxOwner, SandboxSpec

NEW_PREFIX, TRASH_PREFIX = ".new-", ".trash-"
SANDBOX_ID = re.compile(r"[0-9a-f]{10}-[0-9]+-[0-9a-f]{6}")
"""Hash of the job, attempt that made it, chance. Other names in a scratch folder are not ours."""
MOST_LOOKS = 5
"""At a folder that is to be removed and does not get empty: who still writes was at it when it lost its name, and is soon done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRecord:
    """owner.json."""

    job_id: str
    attempt: int
    boot_id: str
    created_s: float
    """Seconds since the epoch, for people and for the age of what nobody knows."""
    backend: str
    node: str
    token_sha256: str
    run_folder: str
    machine_boot: str

    @property
    def owner(self) -> SandboxOwner:
        return SandboxOwner(job_id=self.job_id, attempt=self.attempt, boot_id=self.boot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """state.json."""

    seen_attempt: int
    changed_by: int = 0
    """Attempt of the attachment that may have changed something and has not parked; 0 = none."""
    holder_pid: int = 0
    holder_started: int = 0
    ended: bool = False
    cpu_used_s: float = 0.0
    """CPU seconds of all attachments that have parked: the bound on the whole sandbox goes on from there."""
    is_snapshot: bool = False
    """Whether it is what a sandbox once had (`snapshots.py`): nobody attaches to it."""
    snapshot_bytes: int = 0
    snapshot_files: int = 0

    @property
    def holder(self) -> ProcessIdentity | None:
        return ProcessIdentity(self.holder_pid, self.holder_started) if self.holder_pid else None


class SandboxFolder:
    """One sandbox on disk."""

    def __init__(self, path: Path, record: OwnerRecord) -> None:
        self.path = path
        self.record = record

    @property
    def sandbox_id(self) -> str:
        return self.path.name

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    @property
    def run(self) -> Path:
        return Path(self.record.run_folder)

    @property
    def given(self) -> Path:
        return self.run / "g"

    @property
    def sockets(self) -> Path:
        return self.run / "s"

    def place(self, workdir: str) -> Place:
        """The folders that the walls are built from and around."""
        return Place(folder=self.path, given=self.given, sockets=self.sockets, workdir=workdir)

    def prepare(self, place: Place, mount_points: Sequence[str], image: Path | None = None) -> None:
        """Makes them where they are missing, ready for what is mounted over them.

        Args:
            image: a folder whose user gets a name, the first time.
        """
        is_first = not place.upper.exists()
        for folder in (place.upper, place.work, place.temporary, place.var_temporary):
            folder.mkdir(mode=0o755, exist_ok=True)
        if is_first and image is not None and image.is_dir():
            give_name(image, place.upper, place.workdir)
            make_workdir(image, place.upper, place.workdir)
        for path in mount_points:
            at, below = next(
                ((folder, path.removeprefix(name)) for name, folder in place.private.items() if path.startswith(f"{name}/")),
                (place.upper, path),
            )
            make_mount_point(at, below)

    @property
    def children_file(self) -> Path:
        return self.path / "children"

    @property
    def log_file(self) -> Path:
        return self.path / "holder.log"

    def restore(self) -> bool:
        """Makes the sandbox's own folders where they are missing; False when none was."""
        missing = [folder for folder in (self.home, self.temporary) if not folder.exists()]
        for folder in missing:
            folder.mkdir(mode=0o700)
        return bool(missing)

    # -- making and finding -------------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, scratch: Path, run: Path, spec: SandboxSpec, owner: SandboxOwner, *, backend: str, node: str, image_digest: str = ""
    ) -> tuple[Self, str]:
        """Makes the folder of a new sandbox; returns it and its token, of which only a hash is kept."""
        sandbox_id = f"{job_prefix(owner.job_id)}{owner.attempt}-{secrets.token_hex(3)}"
        token = secrets.token_hex(16)
        record = OwnerRecord(
            job_id=owner.job_id,
            attempt=owner.attempt,
            boot_id=owner.boot_id,
            created_s=time.time(),
            backend=backend,
            node=node,
            token_sha256=hashlib.sha256(token.encode()).hexdigest(),
            run_folder=str(run / sandbox_id),
            machine_boot=machine_boot(),
        )
        unnamed = scratch / f"{NEW_PREFIX}{sandbox_id}"
        unnamed.mkdir(mode=0o700)
        failpoint("node_nameless")
        write_json(unnamed / "owner.json", {name: getattr(record, name) for name in OwnerRecord.__slots__})
        wishes = {name: getattr(spec, name) for name in SandboxSpec.__slots__}
        wishes |= {"env": dict(spec.env), "limits": asdict(spec.limits), "image_digest": image_digest}
        write_json(unnamed / "spec.json", wishes)
        write_json(unnamed / "state.json", {"seen_attempt": owner.attempt})
        for name in ("home", "tmp"):
            (unnamed / name).mkdir(mode=0o700)
        for name in ("lock", "lease"):
            (unnamed / name).touch(mode=0o600)
        unnamed.rename(scratch / sandbox_id)
        failpoint("node_named")
        folder = cls(scratch / sandbox_id, record)
        folder.run.mkdir(mode=0o700)
        folder.given.mkdir(mode=0o700)
        folder.sockets.mkdir(mode=0o700)
        return folder, token

    @classmethod
    def open(cls, path: Path) -> Self:
        """Reads an existing folder.

        Raises:
            SandboxGone: it is not there, or not a sandbox of ours.
        """
        try:
            values = json.loads((path / "owner.json").read_bytes())
            record = OwnerRecord(**{name: values[name] for name in OwnerRecord.__slots__})
            if (given := given_to(path)) is not None:
                record = replace(record, job_id=given.job_id, attempt=given.attempt, boot_id=given.boot_id)
        except FileNotFoundError:
            raise SandboxGone(path.name, f"no folder {path}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SandboxGone(path.name, f"{path / 'owner.json'} cannot be read: {error!r}") from error
        return cls(path, record)

    @classmethod
    def without_record(cls, path: Path, run: Path) -> Self:
        """A folder whose owner.json says nothing, as after a power failure: enough to end it.

        Args:
            run: the folder of all sandboxes' sockets.
        """
        record = OwnerRecord(
            job_id="",
            attempt=0,
            boot_id="",
            created_s=0.0,
            backend="",
            node="",
            token_sha256="",
            run_folder=str(run / path.name),
            machine_boot="",
        )
        return cls(path, record)

    def wishes(self) -> tuple[SandboxSpec, str]:
        """The spec it was made for, and the digest of the image that its name meant then."""
        try:
            values = json.loads((self.path / "spec.json").read_bytes())
        except OSError as error:
            raise SandboxGone(self.sandbox_id, f"its folder was removed: {error}") from error
        limits = Limits(**{name: values["limits"][name] for name in Limits.__slots__ if name in values["limits"]})
        known = {name: values[name] for name in SandboxSpec.__slots__ if name in values}
        return SandboxSpec(**{**known, "isolation": Isolation(values["isolation"]), "limits": limits}), values["image_digest"]

    # -- state and lease ----------------------------------------------------------------------------------------------------------

    def state(self) -> FolderState:
        with self.held():
            return self._read_state()

    def change_state(self, **changes: Any) -> None:
        with self.held():
            self._write_state(replace(self._read_state(), **changes))

    def claim(self, owner: SandboxOwner, token: str) -> int:
        """Takes the lease for an attempt; returns the descriptor that holds it.

        Raises:
            SandboxRefused, StaleAttempt, SandboxBusy, SandboxGone: see `SandboxProvider.attach`.
        """
        with self._admitted(owner, token) as state:
            if state.is_snapshot:
                raise SandboxRefused(self.sandbox_id, "it is a snapshot: restore it")
            lease = os.open(self.path / "lease", os.O_RDWR)
            try:
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lease)
                raise SandboxBusy(self.sandbox_id) from None
            if state.changed_by:
                os.close(lease)
                raise SandboxGone(self.sandbox_id, f"attempt {state.changed_by} changed it and was lost: start a new one")
        return lease

    def begin_from(self, owner: SandboxOwner, token: str) -> None:
        """An attempt begins from this snapshot.

        Raises:
            SandboxRefused, StaleAttempt, SandboxGone: see `SandboxProvider.restore`.
        """
        with self._admitted(owner, token) as state:
            if not state.is_snapshot:
                raise SandboxRefused(self.sandbox_id, "it is a sandbox: attach to it")

    @contextlib.contextmanager
    def _admitted(self, owner: SandboxOwner, token: str) -> Iterator[FolderState]:
        """Holds it for an attempt that may have it and was written down; the state as it is now."""
        if owner.job_id != self.record.job_id:
            raise SandboxRefused(self.sandbox_id, f"it belongs to job {self.record.job_id}, not {owner.job_id}")
        if not hmac.compare_digest(hashlib.sha256(token.encode()).hexdigest(), self.record.token_sha256):
            raise SandboxRefused(self.sandbox_id, "wrong token")
        with self.held():
            state = self._read_state()
            if owner.attempt < state.seen_attempt:
                raise StaleAttempt(self.sandbox_id, owner.attempt, state.seen_attempt)
            state = replace(state, seen_attempt=owner.attempt)
            self._write_state(state)
            if state.ended:
                raise SandboxGone(self.sandbox_id, "it was stopped")
            yield state

    def is_over(self) -> bool:
        """Whether it was ended, or lost by an attachment that had changed it, and nobody holds it: then nobody can have it any more.

        Raises:
            SandboxGone: it was removed.
        """
        with self.held():  # as `claim`, which must not find the lease taken by this look
            state = self._read_state()
            if not state.ended and not state.changed_by:
                return False
            lease = os.open(self.path / "lease", os.O_RDWR)
            try:
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            finally:
                os.close(lease)
            return True

    def give(self, owner: SandboxOwner) -> None:
        """Writes down for whom a sandbox is that was made for nobody in particular, once. Its attachment goes on.

        One file that is new says all of it: to replace those that are there takes a disk many times as long, as it brings their content
        to the disk first, and somebody waits for this.

        Raises:
            SandboxGone: it was ended meanwhile.
        """
        with self.held():
            state = self._read_state()
            if state.ended:
                raise SandboxGone(self.sandbox_id, "it was stopped")
            if not state.changed_by:
                self._write_state(replace(state, changed_by=state.seen_attempt))
            try:
                write_json(self.path / "given.json", asdict(owner))
            except FileNotFoundError:  # who removes it does not wait for the lock
                raise SandboxGone(self.sandbox_id, "its folder was removed") from None
            self.record = replace(self.record, job_id=owner.job_id, attempt=owner.attempt, boot_id=owner.boot_id)

    def fence_off(self, attempt: int) -> None:
        """Has it ended for an attempt that starts anew: whoever holds it, or is about to, is of an attempt before that one.

        Raises:
            StaleAttempt: a later attempt was here.
            SandboxGone: it was removed.
        """
        with self.held():
            state = self._read_state()
            if state.seen_attempt > attempt:
                raise StaleAttempt(self.sandbox_id, attempt, state.seen_attempt)
            self._write_state(replace(state, seen_attempt=attempt, ended=True))

    def record_holder(self, holder: ProcessIdentity) -> FolderState:
        """Writes down who holds the lease; refused when the sandbox was stopped since it was claimed."""
        with self.held():
            state = self._read_state()
            if state.ended:
                raise SandboxGone(self.sandbox_id, "it was stopped")
            state = replace(state, holder_pid=holder.pid, holder_started=holder.started)
            self._write_state(state)
            return state

    # -- removing -----------------------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Deletes the folder; its name goes first, so that nobody meets half of it."""
        trash = self.path.with_name(f"{TRASH_PREFIX}{self.sandbox_id}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(trash)
        failpoint("node_trashed")
        remove_tree(trash)
        failpoint("node_sockets_left")
        remove_tree(self.run)

    @contextlib.contextmanager
    def checked(self, attempt: int | None = None) -> Iterator[None]:
        """As `held`, once it is certain that it was not ended, and that no attempt after this one has been here.

        Raises:
            SandboxGone, StaleAttempt
        """
        with self.held():
            state = self._read_state()
            if state.ended:
                raise SandboxGone(self.sandbox_id, "it was stopped")
            if attempt is not None and attempt < state.seen_attempt:
                raise StaleAttempt(self.sandbox_id, attempt, state.seen_attempt)
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Whoever changes or asks for the state, or claims the lease, waits."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            raise SandboxGone(self.sandbox_id, "its folder was removed") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read_state(self) -> FolderState:
        try:
            values = json.loads((self.path / "state.json").read_bytes())
            given = given_to(self.path)
        except FileNotFoundError:
            raise SandboxGone(self.sandbox_id, "its folder was removed") from None
        except ValueError:  # the machine lost its power: what nobody can read, nobody can attach to
            return FolderState(seen_attempt=self.record.attempt, ended=True)
        state = FolderState(**{name: values[name] for name in FolderState.__slots__ if name in values})
        if given is not None and state.seen_attempt < given.attempt:  # as it stood when it was given away
            return replace(state, seen_attempt=given.attempt, changed_by=given.attempt if state.changed_by else 0)
        return state

    def _write_state(self, state: FolderState) -> None:
        try:
            write_json(self.path / "state.json", {name: getattr(state, name) for name in FolderState.__slots__})
        except FileNotFoundError:  # who removes it does not wait for the lock
            raise SandboxGone(self.sandbox_id, "its folder was removed") from None


def given_to(path: Path) -> SandboxOwner | None:
    """To whom a sandbox was given that was made for nobody in particular; None while it was not, or where it was made for somebody.

    Raises:
        ValueError: nobody can read it.
    """
    try:
        descriptor = os.open(os.path.join(path, "given.json"), os.O_RDONLY)
    except FileNotFoundError:  # of nearly all that are looked at
        return None
    with open(descriptor, "rb") as file:
        values = json.loads(file.read())
    try:
        return SandboxOwner(**{name: values[name] for name in SandboxOwner.__slots__})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path / 'given.json'} is no owner: {error!r}") from error


def make_mount_point(below: Path, path: str) -> None:
    """Real folders on the way to where something is mounted: a link there, made by an earlier attachment, would lead the one who mounts
    elsewhere, and he is outside."""
    at = below
    for part in path.strip("/").split("/"):
        at = at / part
        with contextlib.suppress(FileNotFoundError):
            mode = at.lstat().st_mode
            if not stat.S_ISDIR(mode):
                at.unlink()
            elif mode & 0o700 != 0o700:
                at.chmod(stat.S_IMODE(mode) | 0o700)
        with contextlib.suppress(FileExistsError):
            at.mkdir(mode=0o755)


def make_workdir(image: Path, upper: Path, workdir: str) -> None:
    """Makes the working folder above an image that has nothing of its path: else PID 1 starts a program for it, as the walls stand.

    A path that begins in the image is left to PID 1: a folder made above one of the image would stand there with our mode and owner. So is
    one that is no plain path: what its dots mean is to be found out inside.
    """
    parts = workdir.strip("/").split("/")
    if not {"", ".", ".."} & set(parts) and not os.path.lexists(image / parts[0]):
        make_mount_point(upper, workdir)


def job_prefix(job_id: str) -> str:
    """What the ids of all sandboxes of one job begin with."""
    return f"{hashlib.sha256(job_id.encode()).hexdigest()[:10]}-"


def sandbox_paths(scratch: Path, *prefixes: str) -> list[Path]:
    """Folders of complete sandboxes, those whose ids begin with one of these or all."""
    wanted = prefixes or ("",)
    try:
        return [scratch / name for name in sorted(os.listdir(scratch)) if name.startswith(wanted) and SANDBOX_ID.fullmatch(name)]
    except FileNotFoundError:
        return []


def remove_tree(path: Path) -> None:
    """Deletes a folder that a stranger filled, however deep; links are never followed, folders without permissions are opened first.

    Who comes while another deletes it waits: two that take files from under each other would both give up. A file of one who had begun to
    write before the folder lost its name may come after a look: then another look is taken.
    """
    with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
        os.chmod(path, 0o700)
        alone = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, alone)
        fcntl.flock(alone, fcntl.LOCK_EX)
        for left in reversed(range(MOST_LOOKS)):
            try:
                _empty(path)
                os.rmdir(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not left:
                    raise
            else:
                return


def _empty(path: Path) -> None:
    """Empties a folder: each one in it is brought up into one yard first, so nothing recurses and no path gets longer than the yard's."""
    yard = Path(tempfile.mkdtemp(prefix=".yard-", dir=path))
    numbers = itertools.count()
    folders = [path]
    while folders:
        folder = folders.pop()
        for name in os.listdir(folder):
            inner = folder / name
            if inner == yard:
                continue
            if not stat.S_ISDIR(os.lstat(inner).st_mode):
                os.unlink(inner)
                continue
            os.chmod(inner, 0o700)
            brought_up = yard / str(next(numbers))
            inner.rename(brought_up)
            folders.append(brought_up)
        if folder != path:
            os.rmdir(folder)
    os.rmdir(yard)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Replaces a file in one step: a reader sees the old or the new content."""
    fresh = path.with_name(f"{path.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(values, file)
    fresh.rename(path)
