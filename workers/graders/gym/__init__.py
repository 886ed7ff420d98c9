"""Text environments of `reset` and `step`: in processes of their own, from packages that the operator allows, and always replayable.

GymSettings                    which there may be, and their limits (`settings.py`)
GymWorld                       one environment with its seed (`world.py`)
Happened, Refused, Crashed     what it answers; Replayed, what it answered when all was done again
Worlds, WorldBroke             the processes, an episode at a time each (`worlds.py`; their side is `child.py`, `packages.py`)
Lamps                          a small one of our own (`lamps.py`)
"""

from workers.graders.gym.lamps import Lamps
from workers.graders.gym.settings import GymSettings
from workers.graders.gym.world import Crashed, GymWorld, Happened, Refused, Replayed
from workers.graders.gym.worlds import WorldBroke, Worlds

__all__ = ["Crashed", "GymSettings", "GymWorld", "Happened", "Lamps", "Refused", "Replayed", "WorldBroke", "Worlds"]
