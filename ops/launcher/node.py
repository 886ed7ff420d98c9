"""`ops/launch node`, `llm` and `down`: the environment is checked, never made or completed here.

A node may start on a hundred machines at once, with the project on a file system that they share: who installs there is a person, once.
"""

from ops.launcher.environment import RUN_EXTRAS, Environment
from ops.launcher.terminal import warn

NOT_READY = 2
"""Exit code: nothing was started."""
COMMANDS = {"node": ("-m", "ops.cli", "node", "run"), "llm": ("-m", "ops.cli", "llm", "node")}
"""What the environment's Python is to run."""


def missing(environment: Environment) -> str:
    """What a person has to do before a node can start here; empty when nothing."""
    if not environment.python.exists():
        return (
            f"There is no environment in {environment.folder}.\n\n  ./ops/launch setup\n\n"
            "makes it, once for all machines that see this folder."
        )
    lacking = sorted(RUN_EXTRAS - environment.installed_extras())
    if lacking:
        return (
            f"The environment in {environment.folder} is not complete for this machine and this version of the project "
            f"(missing: {', '.join(lacking)}).\n\n  ./ops/launch setup\n\ncompletes it; a node installs nothing."
        )
    return ""


def refuse(why: str) -> int:
    """Says it, and answers the exit code."""
    warn(why)
    return NOT_READY
