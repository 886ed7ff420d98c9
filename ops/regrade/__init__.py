"""Judging again what was judged before, without RUN: to try a changed grader on yesterday's run. It replaces nothing.

case_of, jobs_of_run      what is judged again: of Redis, or of a saved record
Regrader, regrade         judges many at a time, as EVAL does
Regraded, Change          one job before and after
ResultsFile               what was found, as JSON lines; a command that is started again goes on with it
"""

from ops.regrade.cases import NOT_KEPT, Case, NotGradable, case_of, jobs_of_run
from ops.regrade.difference import Change, Found, Regraded, Summary
from ops.regrade.results_file import ResultsFile
from ops.regrade.work import Regrader, regrade

__all__ = [
    "NOT_KEPT",
    "Case",
    "Change",
    "Found",
    "NotGradable",
    "Regraded",
    "Regrader",
    "ResultsFile",
    "Summary",
    "case_of",
    "jobs_of_run",
    "regrade",
]
