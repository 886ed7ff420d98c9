"""One trajectory as a file that can be read alone: what `rollstream trajectory save` writes.

    rollstream-trajectory 2\\n          the format and its version
    {"job": "...", ...}\\n              one line of JSON: what is known of the job, `bytes` and `sha256` of the body and of each part
    <body>                             exactly as Redis has it (`pipeline/codec.py`): codec byte, msgpack map
    <parts>                            in the order of the header: what judging it again takes, and what was judged

The parts are bodies, too: `prompt`, `template` and `environment` of the job, and its `grade`. Without any the format is 1. `head -n 2`
shows what a file is. The body is copied, never encoded anew, so that a file is evidence of what the trainer was given.
A bare body, saved by other means, is read, too; nothing then vouches for its bytes.

Whatever is wrong with a file is an `UnreadableTrajectory` that says what.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import codec
from pipeline.errors import DamagedBody, NewerMessage, RollstreamError
from pipeline.messages import Trajectory

MAGIC = b"rollstream-trajectory "
FORMAT, WITHOUT_PARTS = 2, 1
SUFFIX = ".trajectory"
MAX_FILE_BYTES = 2**30
"""A trajectory of a million tokens has 13 MB; what is larger than this is none."""
MAX_HEADER_BYTES = 65_536
PARTS = ("prompt", "template", "environment", "grade")


class UnreadableTrajectory(RollstreamError):
    """A file, or what Redis has of a job, holds no trajectory that can be read."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: no trajectory can be read: {why}")
        self.name = name
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecord:
    """A trajectory and where it is from."""

    name: str
    """File or job."""
    facts: Mapping[str, str]
    """What is known of its job: `job`, `run`, `task`, `outcome`, `reward`, `attempt`, ...; empty for a bare body."""
    trajectory: Trajectory
    body: bytes
    ended: bool = True
    """False: the job runs, and these are its finished turns so far."""
    parts: Mapping[str, bytes] = field(default_factory=dict)
    """Bodies beside it, by name: `PARTS`, and what a newer program may know."""


def record_of(
    name: str, body: bytes, facts: Mapping[str, str], *, ended: bool = True, parts: Mapping[str, bytes] | None = None
) -> TrajectoryRecord:
    """The record with that body.

    Raises:
        UnreadableTrajectory
    """
    try:
        trajectory = codec.decode(Trajectory, body)
    except (DamagedBody, NewerMessage) as error:
        raise UnreadableTrajectory(name, str(error)) from error
    return TrajectoryRecord(name=name, facts=dict(facts), trajectory=trajectory, body=body, ended=ended, parts=parts or {})


def write(path: Path, record: TrajectoryRecord) -> int:
    """Writes a record, whole or not at all, over what was there; returns the bytes of the file."""
    header: dict[str, object] = {**record.facts, "ended": record.ended, **_seal(record.body)}
    if record.parts:
        header["parts"] = {name: _seal(part) for name, part in record.parts.items()}
    first = MAGIC + f"{FORMAT if record.parts else WITHOUT_PARTS}\n".encode()
    content = b"".join((first, json.dumps(header, ensure_ascii=True).encode(), b"\n", record.body, *record.parts.values()))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return len(content)


def read(path: Path) -> TrajectoryRecord:
    """The record in a file.

    Raises:
        UnreadableTrajectory: it is no such file, was cut, or changed since it was written.
    """
    name = _utf8(str(path))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableTrajectory(name, "not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise UnreadableTrajectory(name, f"it has {status.st_size:,} bytes, more than {MAX_FILE_BYTES:,}")
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableTrajectory(name, error.strerror or str(error)) from error
    if content[:1] == bytes([codec.PLAIN]):
        return record_of(name, content, {})
    return _read_with_header(name, content)


def _read_with_header(name: str, content: bytes) -> TrajectoryRecord:
    first_end = content.find(b"\n", 0, len(MAGIC) + 20)
    if not content.startswith(MAGIC) or first_end < 0:
        raise UnreadableTrajectory(name, f"it begins with {content[:24]!r}, not with {MAGIC.decode()!r} or a body")
    format_ = content[len(MAGIC) : first_end].decode("ascii", "replace")
    if format_ not in (str(FORMAT), str(WITHOUT_PARTS)):
        raise UnreadableTrajectory(name, f"format {format_[:20]!r}, this program reads {WITHOUT_PARTS} and {FORMAT}")
    header_end = content.find(b"\n", first_end + 1, first_end + MAX_HEADER_BYTES)
    try:
        header = json.loads(content[first_end + 1 : header_end]) if header_end > 0 else None
    except (ValueError, RecursionError) as error:
        raise UnreadableTrajectory(name, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise UnreadableTrajectory(name, "its header is no JSON object on one line")
    sealed = header.get("parts", {}) if format_ == str(FORMAT) else {}
    if not isinstance(sealed, dict):
        raise UnreadableTrajectory(name, f"its parts are {sealed!r:.40}, not a map")
    rest = content[header_end + 1 :]
    sizes = [seal.get("bytes") if isinstance(seal, dict) else None for seal in (header, *sealed.values())]
    known = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size >= 0]
    if len(known) != len(sizes) or sum(known) != len(rest):
        what = f"a body of {header.get('bytes')!r:.40} bytes" + (f" and {len(sealed)} parts" if sealed else "")
        raise UnreadableTrajectory(name, f"cut or grown: {what} was written, {len(rest):,} are there")
    bodies: list[bytes] = []
    for seal, size in zip((header, *sealed.values()), known, strict=True):
        bodies.append(rest[:size])
        rest = rest[size:]
        if seal.get("sha256") != hashlib.sha256(bodies[-1]).hexdigest():
            raise UnreadableTrajectory(name, "changed since it was written: its checksum is another one")
    facts = {_utf8(key): _utf8(value) for key, value in header.items() if isinstance(value, str) and key != "sha256"}
    parts = {_utf8(part): body for part, body in zip(sealed, bodies[1:], strict=True)}
    return record_of(name, bodies[0], facts, ended=header.get("ended") is not False, parts=parts)


def _seal(body: bytes) -> dict[str, object]:
    return {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def _utf8(text: str) -> str:
    """With lone surrogates spelt out, as they stand for bytes of a file name that is no UTF-8: neither JSON nor a terminal takes them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
