"""Spans of jobs for OpenTelemetry (docs/adr/0038-traces.md). `asked.py` looks whether anybody wants them; only then is the rest loaded."""
