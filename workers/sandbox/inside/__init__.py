"""The execution server: sandboxes that nobody enters (ADR 20). Its program is in `guest/`, everything else is the worker's side of it."""

from workers.sandbox.inside.bundle import Bundle, server_bundle
from workers.sandbox.inside.files import InsideFiles
from workers.sandbox.inside.launcher import InsideLauncher, ServerBoot

__all__ = ["Bundle", "InsideFiles", "InsideLauncher", "ServerBoot", "server_bundle"]
