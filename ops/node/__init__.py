"""A node: the processes that serve jobs on one machine, and their launcher (docs/adr/0027-node.md)."""
