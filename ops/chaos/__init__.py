"""Breaks a running pipeline on purpose, then counts: nothing missing, nothing doubled. `python -m ops.chaos --help`."""

from ops.chaos.campaign import Campaign, Plan, Verdict

__all__ = ["Campaign", "Plan", "Verdict"]
