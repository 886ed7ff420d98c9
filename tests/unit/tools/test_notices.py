"""What a model reads of the limits of its sandbox."""

from __future__ import annotations

from workers.sandbox import KernelResult, ShellResult
from workers.tools import bash_tool, python_tool
from workers.tools.notices import MOST_LINES, notice_lines

MEMORY = "memory: the sandbox used 80 MiB of its 64 MiB; its largest process, cc1 (pid 12) with 70 MiB, was killed"


def test_why_a_command_died_stands_before_how_it_ended() -> None:
    killed = ShellResult(status="ok", output="Killed\n", exit_code=137, cwd="/w", notices=(MEMORY,))
    python = KernelResult(status="kernel_died", output="The kernel ended.\n", stdout="", result=None, state_lost=True, notices=(MEMORY,))

    assert bash_tool.model_text(killed, 30, None) == f"Killed\n[{MEMORY}]\n[Exit code 137. Working directory: /w]"
    assert python_tool.model_text(python, 30) == (
        f"The kernel ended.\n[{MEMORY}]\n[Python has ended. All variables are lost; the next call starts a new one.]"
    )


def test_of_many_notices_the_last_are_shown_and_the_others_counted() -> None:
    lines = notice_lines([str(number) for number in range(MOST_LINES + 7)]).splitlines()

    assert lines == ["[7 more of what follows came before.]", *(f"[{number}]" for number in range(7, MOST_LINES + 7))]
    assert notice_lines(()) == ""
