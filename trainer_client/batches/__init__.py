"""From a step to what a trainer trains on: rollouts as plain values, manifests, batches (docs/adr/0023-batches-and-adapters.md).

rollout      Rollout: one member of a trained group
"""

from trainer_client.batches.rollout import Rollout

__all__ = ["Rollout"]
