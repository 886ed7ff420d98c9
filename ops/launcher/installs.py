"""Pip at work: shown while it runs, its log kept, a failure explained with what can be done about it.

Pip writes to a log file and we read along, so that the log is whole whatever happens to us.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from ops.launcher import child
from ops.launcher.bootstrap_pip import pip_environ
from ops.launcher.terminal import LiveLine

TAIL_LINES = 20
"""Of the log, shown after a failure: pip's own error with the few lines that led to it."""

_ADVICE = (
    (r"407|[Pp]roxy", "The proxy refused or is not reachable: set HTTPS_PROXY=http://user:password@host:port (pip: PIP_PROXY)."),
    (r"CERTIFICATE_VERIFY_FAILED|certificate verify", "A company's certificate stands in between: PIP_CERT=/path/to/its-ca.pem."),
    (r"\b40[13]\b", "The index refused the login: check the address in PIP_INDEX_URL or in pip.conf."),
    (r"No space left", "The disk is full. Downloads pass through TMPDIR; the environment itself needs about 500 MB here."),
    (
        r"No matching distribution|Could not find a version|none is configured|lists no file",
        "The index lacks a wheel for this Python and machine. Wheels exist for Python 3.11 to 3.14 on glibc Linux (x86-64, aarch64) "
        "and macOS; a mirror must carry them. PIP_INDEX_URL names another index.",
    ),
    (
        r"name resolution|getaddrinfo|NewConnection|[Tt]imed? ?out|unreachable|[Cc]onnection (refused|broken|reset|aborted)|Errno",
        "The index was not reached. Behind a proxy: HTTPS_PROXY=http://host:port. With a mirror: PIP_INDEX_URL=https://host/simple. "
        "Offline: PIP_NO_INDEX=1 PIP_FIND_LINKS=/folder/with/wheels (setuptools among them).",
    ),
)
_ADVICE_ELSE = "Run it again when that is mended; what is already installed is kept."


class InstallFailed(Exception):
    """Pip ended with an error; the text has the end of its log and what to do."""


def advice_for(log: str) -> str:
    """What a person can do about a failed install, read off pip's own words."""
    found = [text for pattern, text in _ADVICE if re.search(pattern, log)]
    return "\n".join(f"  {text}" for text in [*found[:2], _ADVICE_ELSE])


def run_pip(python: Path, arguments: Sequence[str], *, log: Path, cwd: Path, keep_open: Sequence[int] = ()) -> str:
    """Run pip and show what it does; returns its log.

    Args:
        log: where all it says is kept, written anew.
        keep_open: descriptors of locks that hold as long as pip lives, also when we are killed.

    Raises:
        InstallFailed: pip ended with an error.
    """
    command = [str(python), "-I", "-m", "pip", *arguments]
    live, state = LiveLine(), PipState()
    with log.open("wb") as output, log.open("r", encoding="utf-8", errors="replace") as seen:

        def tick() -> None:
            for line in seen.readlines():
                state.read(line)
            live.show(state.text())

        try:
            code = child.run(command, cwd=cwd, env=pip_environ(), output=output, keep_open=keep_open, tick=tick)
        finally:
            live.clear()
    text = log.read_text(encoding="utf-8", errors="replace")
    if code:
        tail = "\n".join(f"  | {line}" for line in text.splitlines()[-TAIL_LINES:])
        raise InstallFailed(f"pip ended with code {code}; the end of {log}:\n{tail}\n{advice_for(text)}")
    return text


class PipState:
    """What pip is at, read off its lines."""

    def __init__(self) -> None:
        self._doing = "asking the index"
        self._packages = 0
        self._downloaded_mb = 0.0

    def read(self, line: str) -> None:
        """Take in one line of pip's output."""
        words = line.split()
        if line.startswith(("Collecting ", "Processing ")):
            self._packages += 1
            self._doing = f"looking at {words[1].rpartition('/')[2]}"
        elif line.lstrip().startswith("Downloading "):
            size = re.search(r"\(([\d.]+) (k|M|G)B\)", line)
            if size and not words[1].endswith(".metadata"):
                self._downloaded_mb += float(size[1]) * {"k": 1e-3, "M": 1.0, "G": 1e3}[size[2]]
            self._doing = f"downloading {words[1].rpartition('/')[2]}"
        elif line.startswith("Installing collected packages"):
            self._doing = f"installing {len(words) - 3} packages"
        elif line.startswith("Successfully installed"):
            self._doing = "done"

    def text(self) -> str:
        """One line for a person who waits."""
        return f"{self._packages} packages, {self._downloaded_mb:.0f} MB downloaded: {self._doing}"
