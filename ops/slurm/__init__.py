"""Batch scripts of Slurm: a node on each machine of an allocation (docs/how-to/slurm.md)."""
