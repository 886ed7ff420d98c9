"""What the commands around tasks do.

foreground, Foreground, Graded   a handler's stages in this process, without Redis
SandboxesOnDemand                the node's sandboxes for a command
"""

from ops.tasks.foreground import Foreground, Graded, foreground
from ops.tasks.sandboxes import SandboxesOnDemand

__all__ = ["Foreground", "Graded", "SandboxesOnDemand", "foreground"]
