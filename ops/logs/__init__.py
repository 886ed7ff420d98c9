"""Logs of nodes: kept by the launcher, read by people. The protocol is in docs/adr/0033-logs-and-secrets.md."""
