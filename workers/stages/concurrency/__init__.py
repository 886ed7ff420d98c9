"""Adaptive concurrency of RUN: how many jobs of a run may call the model in this process, and which (ADR 15).

ConcurrencyLimit, ServerLoad, Everybody, Change    how many: follows the pressure of the run's servers; pure (`control.py`)
Places                                             which: the oldest groups first; pure (`places.py`)
Limiter, JobPlace                                  both at work in a process (`limiter.py`)
LimitedModel                                       what the agent calls (`limited_model.py`)
"""

from workers.stages.concurrency.control import Change, ConcurrencyLimit, Everybody, ServerLoad
from workers.stages.concurrency.limited_model import LimitedModel
from workers.stages.concurrency.limiter import JobPlace, Limiter
from workers.stages.concurrency.places import Places

__all__ = ["Change", "ConcurrencyLimit", "Everybody", "JobPlace", "LimitedModel", "Limiter", "Places", "ServerLoad"]
