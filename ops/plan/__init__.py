"""What a pipeline needs for a goal: slots, nodes, model servers, Redis. `rollstream plan` (docs/adr/0036-scaling-and-sizing.md).

PlanSettings            the goal, and how long the parts of a job take (`settings.py`)
measured_in_run         the same from a run that was (`measured.py`)
make_plan               Little's law and the costs of Redis (`sizing.py`, `costs.py`)
as_text, as_map         for people and programs (`view.py`)
"""

from ops.plan import costs
from ops.plan.measured import Measured, NothingMeasured, measured_in_run
from ops.plan.settings import PlanSettings
from ops.plan.sizing import Plan, make_plan
from ops.plan.view import as_map, as_text

__all__ = ["Measured", "NothingMeasured", "Plan", "PlanSettings", "as_map", "as_text", "costs", "make_plan", "measured_in_run"]
