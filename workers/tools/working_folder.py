"""One working directory for the tools of a trajectory: who moves takes the others along.

`bash` and `python` run in processes of their own, each with a directory of its own. To the model they are two ways into one place: after
`cd src` in bash, `open("setup.py")` in Python must mean `src/setup.py`. So each tool that has run notes where its process stands, and each
that is about to run moves its own process there first if another has moved since. Python starts where the shell stands by the same rule.

A folder that is gone by then moves nobody: the tool runs where it stood.
"""

from __future__ import annotations


class WorkingFolder:
    """Where the tools of one trajectory stand. One object shared by them; a tool that is alone has one for itself."""

    def __init__(self) -> None:
        self.path = ""
        """Of the tool that ran last; empty before the first has."""

    def move_for(self, standing: str) -> str:
        """Where a tool whose process stands at `standing` has to go first; empty when it is there, or nobody has moved yet.

        `standing` is empty for a process that has not said yet where it is.
        """
        return self.path if self.path != standing else ""
