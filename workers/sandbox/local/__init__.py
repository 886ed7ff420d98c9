"""Sandboxes that this very process owns: folder, holder, attachment and teardown, the same for every local backend."""

from workers.sandbox.local.backend import Backend, Place, Walls
from workers.sandbox.local.provider import Entry, LocalSandboxes
from workers.sandbox.local.sandbox import LocalSandbox
from workers.sandbox.local.teardown import SweepReport, owners, sweep

__all__ = ["Backend", "Entry", "LocalSandbox", "LocalSandboxes", "Place", "SweepReport", "Walls", "owners", "sweep"]
