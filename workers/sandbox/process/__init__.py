"""The backend `process`: bare processes in a folder, for development and tests. It has no walls, and says so when it starts."""

from workers.sandbox.process.provider import ProcessSandboxes
from workers.sandbox.process.teardown import SweepReport, owners, sweep

__all__ = ["ProcessSandboxes", "SweepReport", "owners", "sweep"]
