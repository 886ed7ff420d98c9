"""Why an environment cannot be had. Raised in its process, and told to the worker by the class's name."""

from __future__ import annotations


class BadWorld(Exception):
    """What is asked for cannot be had: no such environment, options that it does not take, actions or observations that are no text."""


class NotInstalled(Exception):
    """The package is not there."""
