"""Tasks: what they need, how the agent acts, how the end is judged."""

from workers.handlers.base import Ended, Environment, EvalContext, RunContext, StageContext, TaskHandler
from workers.handlers.registry import Handlers

__all__ = ["Ended", "Environment", "EvalContext", "Handlers", "RunContext", "StageContext", "TaskHandler"]
