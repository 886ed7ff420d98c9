"""Names of blobs: a uri says whose it is, and is never a path.

    blob:<run>/<job>/<attempt>-<nonce>/<file>

A **life** is one attempt's own folder. The nonce is new for each, so that a name is used once: a job that Redis forgot and ran again begins
anew at attempt 1, and what is deleted of the first life is never of the second.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from pipeline.blobs.errors import DamagedBlob
from pipeline.keys import run_of

_LIFE = r"(?P<attempt>[0-9]{1,9})-(?P<nonce>[0-9a-f]{12})"
_RUN = r"(?P<run>[a-z0-9][a-z0-9_-]{0,47})"
_JOB = r"(?P<job>[a-z0-9][A-Za-z0-9_-]{0,47}(?:\.[A-Za-z0-9][A-Za-z0-9_-]{0,63}){1,3})"
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
FILE = re.compile(r"[a-z][a-z0-9_]{0,31}(?:\.[0-9]{1,6})?\Z")
RUN, JOB, LIFE = re.compile(_RUN + r"\Z"), re.compile(_JOB + r"\Z"), re.compile(_LIFE + r"\Z")
_URI = re.compile(rf"blob:{_RUN}/{_JOB}/{_LIFE}/(?P<file>{FILE.pattern.removesuffix(chr(92) + 'Z')})\Z")


@dataclass(frozen=True, slots=True)
class Life:
    """One attempt of one job, and its folder."""

    run: str
    job: str
    attempt: int
    nonce: str

    @classmethod
    def new(cls, job: str, attempt: int) -> Life:
        """A folder that nobody has had.

        Raises:
            ValueError: no job of ours has such an id.
        """
        if not JOB.match(job):
            raise ValueError(f"expected the id of a job, got {job[:100]!r}")
        return cls(run_of(job), job, attempt, secrets.token_hex(6))

    @classmethod
    def of_folder(cls, run: str, job: str, folder: str) -> Life | None:
        """What a folder in a store is; None when it is none of ours."""
        match = LIFE.match(folder)
        if match is None or not JOB.match(job) or run_of(job) != run:
            return None
        return cls(run, job, int(match["attempt"]), match["nonce"])

    @property
    def folders(self) -> tuple[str, str, str]:
        """From the store's own folder to this one."""
        return self.run, self.job, f"{self.attempt}-{self.nonce}"

    def uri(self, file: str) -> str:
        return f"blob:{'/'.join(self.folders)}/{file}"


def read_uri(uri: str, job: str) -> tuple[Life, str]:
    """Where a blob of a job lies: its life and its file.

    Raises:
        DamagedBlob: it is no such name, or one of another job.
    """
    match = _URI.match(uri)
    if match is None:
        raise DamagedBlob(uri, "expected blob:<run>/<job>/<attempt>-<nonce>/<file>")
    if match["job"] != job or run_of(job) != match["run"]:
        raise DamagedBlob(uri, f"it is named by job {job}")
    return Life(match["run"], job, int(match["attempt"]), match["nonce"]), match["file"]


__all__ = ["FILE", "JOB", "LIFE", "NAME", "RUN", "Life", "read_uri"]
