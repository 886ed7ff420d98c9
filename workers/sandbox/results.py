"""What comes back from a sandbox. What a command does to itself is a result: exit codes, signals, time limits, a dead shell or kernel.

`notices`, in each: what was ended or refused in the sandbox for going over a bound, while the command ran or since the result before, in
words and in order. A command that was killed for such a reason has the reason in its own result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ShellStatus = Literal["ok", "timeout", "closed", "running", "busy", "refused"]
KernelStatus = Literal["ok", "error", "timeout", "kernel_died"]
EntryKind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """One command that ran by itself, without a shell session."""

    returncode: int
    """Exit code; minus the signal's number when a signal ended it."""
    stdout: bytes
    """At most `max_output_bytes`: the beginning and the end, with a line between that says how much is missing."""
    stderr: bytes
    timed_out: bool
    truncated_bytes: int
    """Bytes of both streams that were dropped."""
    took_s: float
    notices: tuple[str, ...] = ()

    @property
    def stdout_text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """One command in a persistent shell.

    `status`:
        ok       the command ended; `exit_code` is its own
        timeout  it was ended at its limit; `output` is what it had printed
        closed   the shell itself ended (`exit`, `exec`, a signal); the next command runs in a new one
        running  nothing was printed for `no_change_timeout_s`; it still runs: `wait`, `send` or `interrupt`
        busy     not run: an earlier command still runs
        refused  not run: the text cannot be a command; `output` says why
    """

    status: ShellStatus
    output: str
    """stdout and stderr as they came, without terminal sequences; valid UTF-8."""
    exit_code: int | None
    """As bash counts: 128 + n for signal n. None while it runs, and after a time limit that only ending the shell could enforce."""
    cwd: str
    """Working directory after the command."""
    restarted: bool = False
    """The shell is a new one from here on: variables, functions and background jobs of the old one are lost."""
    late_output: str = ""
    """What background jobs printed between the last command and this one."""
    truncated_bytes: int = 0
    took_s: float = 0.0
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResult:
    """One cell.

    `status`:
        ok           it ran to its end
        error        it raised; `error_name` and `error_text` say what
        timeout      it was interrupted at its limit
        kernel_died  its process ended during the cell (`error_text` says how), or stopped answering and was killed
    """

    status: KernelStatus
    output: str
    """All that the cell shows, in order: both streams, displays, the last value, the traceback. Valid UTF-8, no terminal sequences."""
    stdout: str
    """The stdout stream alone, as printed."""
    result: str | None
    """text/plain of the last expression; None when there is none to show."""
    error_name: str = ""
    error_text: str = ""
    """Traceback, or how the kernel ended."""
    state_lost: bool = False
    """The kernel ended with this cell: its variables are gone."""
    fresh_kernel: bool = False
    """This cell ran in a new kernel although earlier cells ran in another: their variables were not there."""
    cwd: str = ""
    """Working directory after the cell; empty when the kernel did not say (it died, or its folder is gone)."""
    incomplete: bool = False
    """Messages were lost on the way; the status is certain, the output may lack parts."""
    truncated_bytes: int = 0
    took_s: float = 0.0
    notices: tuple[str, ...] = ()
    images: tuple[bytes, ...] = ()
    """Files of images that the cell displayed, as many as were asked for; what a sandbox gave, judged by its header alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One name in a folder."""

    name: str
    kind: EntryKind
    size_bytes: int
