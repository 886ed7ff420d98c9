"""The backend `process`: bare processes in a folder, for development and tests. It has no walls, and says so when it starts."""

from workers.sandbox.process.backend import ProcessBackend

__all__ = ["ProcessBackend"]
