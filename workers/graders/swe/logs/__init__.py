"""What test runners print, read into how each test ended. A module a runner.

Invariants
    - Reading is linear in the length of the log, whatever stands in it.
    - Text that tests print changes no status, as far as the log itself tells it apart from the runner's. A log is not a channel of
      trust: whoever runs in the runner's process can write a perfect one. That is what the reporters are for.
    - What the log does not name has no status.
"""

from workers.graders.swe.logs.parse import FRAMEWORKS, UnknownFramework, parse_log
from workers.graders.swe.logs.parsed import ParsedLog, Status

__all__ = ["FRAMEWORKS", "ParsedLog", "Status", "UnknownFramework", "parse_log"]
