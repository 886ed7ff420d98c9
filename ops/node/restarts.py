"""When a process that ended unasked is started again. Pure: the clock and the process are somebody else's."""

from __future__ import annotations

from dataclasses import dataclass

WRONG_SETTINGS = 2
"""Exit code of our programs that no restart mends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How patient a launcher is."""

    crashes: int = 5
    """So many in a row are borne."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    well_after_s: float = 60.0
    """What ran for so long begins anew: its crash has nothing to do with its start."""


@dataclass(frozen=True, slots=True)
class Restart:
    """It is started again."""

    crashes: int
    """In a row, this one included."""
    pause_s: float


def decide_restart(policy: RestartPolicy, *, crashes: int, ran_s: float, code: int) -> Restart | None:
    """What becomes of a process after its crash; None: no further start.

    Args:
        crashes: in a row, before this one.
        code: its exit code.
    """
    crashes = 1 if ran_s >= policy.well_after_s else crashes + 1
    if crashes > policy.crashes or (code == WRONG_SETTINGS and ran_s < policy.well_after_s and crashes == 1):
        return None
    return Restart(crashes, min(policy.longest_pause_s, policy.first_pause_s * 2 ** (crashes - 1)))
