"""Grading of repairs to repositories: what tests say of a patch.

logs            what test runners print, read
verdict         from ends of tests to resolved or not
patch_extract   what was done to a repository, as a patch
patch_apply     a patch onto a fresh one
history         a repository without its future
"""

from workers.graders.swe.history import Hidden, hide_future
from workers.graders.swe.logs import ParsedLog, Status, parse_log
from workers.graders.swe.patch_apply import Applied, apply_patch
from workers.graders.swe.patch_extract import Patch, extract_patch
from workers.graders.swe.verdict import SweVerdict, has_passed, judge

__all__ = [
    "Applied",
    "Hidden",
    "ParsedLog",
    "Patch",
    "Status",
    "SweVerdict",
    "apply_patch",
    "extract_patch",
    "has_passed",
    "hide_future",
    "judge",
    "parse_log",
]
