"""Rollouts in the types of other trainers: one file a trainer, none of which is imported before it is asked for.

Each takes `Sequence[Rollout]` (docs/adr/0023-batches-and-adapters.md) and imports its trainer inside functions only.
"""
