"""Long commands: the last line of each is shown while it runs, all that they say is kept in a file, its end is shown when one fails."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.launcher import child
from ops.launcher.terminal import LiveLine

TAIL_LINES = 20
"""Of the log, shown after a failure: the error with the few lines that led to it."""


class CommandFailed(Exception):
    """A command ended with an error; the text has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Commands that belong together."""

    log: Path
    """What they say is added to it."""
    keep_open: tuple[int, ...] = ()
    """Descriptors of locks that hold as long as a command lives, also when we are killed."""

    def run(self, *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        """Run one to its end.

        Raises:
            CommandFailed: it ended with an error, or is not there.
        """
        live, last = LiveLine(), str(command[0])
        with self.log.open("ab") as output, self.log.open("r", encoding="utf-8", errors="replace") as seen:
            seen.seek(0, 2)

            def tick() -> None:
                nonlocal last
                last = next((line.strip() for line in reversed(seen.readlines()) if line.strip()), last)
                live.show(last)

            try:
                code = child.run(command, cwd=cwd, env=env, output=output, keep_open=self.keep_open, tick=tick)
            except FileNotFoundError as error:
                raise CommandFailed(f"there is no {error.filename} here") from error
            finally:
                live.clear()
        if code:
            tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            raise CommandFailed(
                f"{command[0]} ended with code {code}; the end of {self.log}:\n" + "\n".join(f"  | {line}" for line in tail)
            )

    def note(self, text: str) -> None:
        """Add to the log what a step found without a command of its own."""
        with self.log.open("a", encoding="utf-8") as kept:
            kept.write(text)
