"""What a sandbox used, what bounds it, and what was ended in it for going over a bound: data for people, tools and the job's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Self

KEPT_NOTICES = 32
"""Of an attachment, and of a job: a record stays small whatever was done to a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxUse:
    """One attachment's use so far; of CPU time the whole sandbox's."""

    enforced: Mapping[str, str] = field(default_factory=dict)
    """Limit -> what enforces it on this node; `nothing` for a limit that nothing enforces here. Empty: nobody has said what is used."""
    memory_bytes: int = 0
    """Of all processes together, at the last look."""
    memory_peak_bytes: int = 0
    processes: int = 0
    """Processes and threads, at the last look."""
    processes_peak: int = 0
    cpu_s: float = 0.0
    cpu_before_s: float = 0.0
    """Of `cpu_s`: by earlier attachments."""
    disk_bytes: int = 0
    """What its files occupy beside the image, at the last count."""
    files: int = 0
    network_bytes: int = 0
    """Both ways through the allow-list proxy."""
    network_refused: int = 0
    """Requests that the list did not allow."""
    notices: tuple[str, ...] = ()
    """What was ended or refused, in words; the last ones when there were many."""

    def to_map(self) -> dict[str, object]:
        """For the wire and for records: plain values only."""
        return {**asdict(self), "enforced": dict(self.enforced), "notices": list(self.notices)}

    @classmethod
    def from_map(cls, values: Mapping[str, object]) -> Self:
        """Reads what `to_map` wrote; fields of a newer writer are ignored, missing ones are empty.

        Raises:
            ValueError: a field has another type; says which.
        """
        read: dict[str, object] = {}
        for known in fields(cls):
            value = values.get(known.name)
            if value is None:
                continue
            if known.name == "enforced":
                if not isinstance(value, Mapping):
                    raise ValueError(f"use of a sandbox: enforced should be a map, got {type(value).__name__}")
                read["enforced"] = {str(limit): str(means) for limit, means in value.items()}
            elif known.name == "notices":
                if not isinstance(value, list | tuple):
                    raise ValueError(f"use of a sandbox: notices should be a list, got {type(value).__name__}")
                read["notices"] = tuple(str(notice) for notice in value)
            elif isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"use of a sandbox: {known.name} should be a number, got {type(value).__name__}")
            else:
                read[known.name] = value
        return cls(**read)  # type: ignore[arg-type]  # names and types were compared above


def joined(first: SandboxUse, second: SandboxUse) -> SandboxUse:
    """What two attachments used, one after the other, of one sandbox or of two: peaks are maxima, times and bytes sums, the last notices
    stay. Where a limit was enforced by different means, both are named."""
    enforced = dict(first.enforced)
    for limit, means in second.enforced.items():
        before = enforced.get(limit, means)
        enforced[limit] = before if before.endswith(means) else f"{before}, then {means}"
    return SandboxUse(
        enforced=enforced,
        memory_bytes=second.memory_bytes,
        memory_peak_bytes=max(first.memory_peak_bytes, second.memory_peak_bytes),
        processes=second.processes,
        processes_peak=max(first.processes_peak, second.processes_peak),
        cpu_s=round(first.cpu_s + second.cpu_s - second.cpu_before_s, 3),
        cpu_before_s=first.cpu_before_s,
        disk_bytes=max(first.disk_bytes, second.disk_bytes),
        files=max(first.files, second.files),
        network_bytes=first.network_bytes + second.network_bytes,
        network_refused=first.network_refused + second.network_refused,
        notices=(first.notices + second.notices)[-KEPT_NOTICES:],
    )
