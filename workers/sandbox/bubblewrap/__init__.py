"""The backend `bubblewrap`: rootless walls of user namespaces and an overlay, in some 10 ms."""

from workers.sandbox.bubblewrap.backend import BubblewrapBackend
from workers.sandbox.bubblewrap.probe import find_bwrap, probe_bubblewrap

__all__ = ["BubblewrapBackend", "find_bwrap", "probe_bubblewrap"]
