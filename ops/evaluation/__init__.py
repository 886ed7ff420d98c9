"""`rollstream eval`: a file of rows through the real pipeline, n samples of each, and numbers that say how sure they are.

plan.py       what is asked, in batches, and its name
results.py    the file that grows
evaluate.py   the way through the pipeline
fleet.py      workers for those who run none
command.py    all of it together
numbers.py    pass@k with intervals, from the file
"""

from ops.evaluation.command import Asked, WorkerEnded, run_evaluation
from ops.evaluation.evaluate import Standing
from ops.evaluation.numbers import Numbers, numbers_as_map, numbers_of
from ops.evaluation.plan import Plan, plan_of
from ops.evaluation.results import FileTaken, NotThisEvaluation, ResultsFile, RowResult

__all__ = [
    "Asked",
    "FileTaken",
    "NotThisEvaluation",
    "Numbers",
    "Plan",
    "ResultsFile",
    "RowResult",
    "Standing",
    "WorkerEnded",
    "numbers_as_map",
    "numbers_of",
    "plan_of",
    "run_evaluation",
]
