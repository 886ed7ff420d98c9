"""What people run: the launcher, the command line, demo, status, benchmarks, import check.

Imports nothing, so that `ops.launcher` works on a bare Python before anything is installed.
"""

__all__: list[str] = []
