"""The execution server: sandboxes that nobody enters (ADR 20). Its program is in `guest/`, everything else is the worker's side of it."""

from workers.sandbox.inside.bundle import Bundle, server_bundle
from workers.sandbox.inside.files import InsideFiles
from workers.sandbox.inside.launcher import NEEDS_PYTHON, InsideLauncher, ServerBoot, is_without_python

__all__ = ["NEEDS_PYTHON", "Bundle", "InsideFiles", "InsideLauncher", "ServerBoot", "is_without_python", "server_bundle"]
