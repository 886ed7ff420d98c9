"""The tool `bash`: commands in the sandbox's persistent shell.

What a call does, by its arguments:

    command                    runs it; what it reads from standard input is empty, unless `interactive` gives it the terminal
    command, is_input          types it into the command that still runs: `C-c` and other `C-` keys, or a line of text
    command empty              waits on for the command that still runs
    restart                    a new shell first, whatever the old one does

1. A call never waits for ever. With `timeout` the command is ended then; without, a command that prints nothing for a while is left running
   and the model is told how to go on. The call's own time limit ends the command in any case.
2. Whatever happened to the shell is said: it ended, it was ended, the next command runs in a new one.
3. The answer ends with the exit code and the working directory, before them what was ended for going over a limit of the sandbox: the end
   of an answer survives every cut.
4. It starts where the other tools stand (`working_folder.py`). Moving there is not seen: `$?` is what the command before left.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pipeline.messages import Json
from workers.sandbox.base import DEFAULT_OUTPUT_BYTES, Shell
from workers.sandbox.results import ShellResult
from workers.tools.base import ToolResult
from workers.tools.notices import notice_lines
from workers.tools.working_folder import WorkingFolder

NO_CHANGE_S = 20.0
"""Without output for so long a command is left running: longer than most silent steps of a build, and far below the limit of a call."""
NO_CHANGE_AFTER_INPUT_S = 2.0
"""A program that was typed to answers at once or computes; the model can wait on for the latter."""
MOVE_S = 5.0
"""For changing to a folder: only a dead network mount takes longer."""
KEY = re.compile(r"C-([a-zA-Z\\\[\]])")

NEW_SHELL = "[The shell had ended. This ran in a new one: variables, functions and background jobs of the old one are gone.]"
STATE_IS_GONE = "variables, functions and background jobs are gone"
NOTHING_RUNS = "[Nothing runs in the shell: there is nothing to wait for.]"
NOTHING_TO_TYPE_TO = "[Not typed: no command runs that could read it. Run a command that reads input with `interactive`.]"


class BashTool:
    """Runs commands in a shell that keeps its state. A failed sandbox raises `SandboxError`; what a command does to itself or to its shell
    is told to the model."""

    name = "bash"
    description = (
        "Run a command in a persistent bash shell. Its working directory, variables, functions and background jobs stay between calls. "
        "stdout and stderr come back together, followed by the exit code and the working directory; of very long output the beginning and "
        "the end. Commands get no input (they read end of file) unless `interactive` is set. "
        "A command that prints nothing for a while is left running and you are told so: then call with an empty command to wait for it, "
        "or with `is_input` to type into it or to press C-c. Start servers and other long-running programs in the background: "
        "`program > log 2>&1 &`."
    )
    parameters: ClassVar[Json] = {
        "type": "object",
        "properties": {
            "command": {
                "type": "string",
                "description": (
                    "The bash command to run; several lines and here-documents are fine. "
                    "Empty: wait for the command that still runs. With is_input: what to type into it."
                ),
            },
            "is_input": {
                "type": "boolean",
                "description": "Type `command` into the running command, as a line of text or as one of the keys C-c, C-d, C-z.",
            },
            "interactive": {
                "type": "boolean",
                "description": "Let this command read what is typed with is_input. Without it, it reads end of file.",
            },
            "timeout": {"type": "number", "description": "Seconds after which the command is ended. The environment sets an upper bound."},
            "restart": {"type": "boolean", "description": "Start a new shell first; everything in the old one is ended."},
        },
        "required": ["command"],
    }

    def __init__(
        self,
        shell: Shell,
        *,
        folder: WorkingFolder | None = None,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        no_change_s: float = NO_CHANGE_S,
    ) -> None:
        self._shell = shell
        self._folder = folder or WorkingFolder()
        self._standing = ""
        self._max_output_bytes = max_output_bytes
        self._no_change_s = no_change_s

    async def __call__(self, arguments: Mapping[str, object], *, timeout_s: float) -> ToolResult:
        """Does what the arguments say; see the module.

        Raises:
            SandboxError: the sandbox failed, not the command.
        """
        command, asked_s = str(arguments["command"]), arguments.get("timeout")
        limit_s = timeout_s if not isinstance(asked_s, int | float) else max(0.0, min(float(asked_s), timeout_s))
        no_change_s = None if asked_s is not None else self._no_change_s
        was_restarted = arguments.get("restart") is True
        if was_restarted:
            await self._shell.close()
        if arguments.get("is_input") is True:
            result = await self._type(command, limit_s, no_change_s)
        elif command.strip():
            stdin = "tty" if arguments.get("interactive") is True else "null"
            result = await self._run(command, limit_s, no_change_s, stdin == "tty")
        elif was_restarted:
            return ToolResult(text=f"[The shell was restarted: {STATE_IS_GONE}.]", details={"status": "ok"})
        else:
            result = await self._shell.wait(timeout_s=limit_s, no_change_timeout_s=no_change_s, max_output_bytes=self._max_output_bytes)
        if result is None:
            return ToolResult(text=NOTHING_TO_TYPE_TO, is_error=True, details={"status": "refused"})
        if result.cwd and result.status in ("ok", "timeout", "closed"):
            self._standing = self._folder.path = result.cwd
        return ToolResult(
            text=model_text(result, limit_s, no_change_s, was_restarted=was_restarted),
            is_error=result.status not in ("ok", "running"),
            details={
                "status": result.status,
                "exit_code": result.exit_code,
                "cwd": result.cwd,
                "restarted": result.restarted or was_restarted,
                "truncated_bytes": result.truncated_bytes,
                "took_s": round(result.took_s, 3),
                "notices": list(result.notices),
            },
        )

    async def _run(self, command: str, limit_s: float, no_change_s: float | None, reads_terminal: bool) -> ShellResult:
        there, moved = self._folder.move_for(self._standing), None
        if there:
            # The code of the command before is put into the text before anything of it runs, and is the code of the whole.
            going = f'eval "builtin cd -- {_in_double_quotes(shlex.quote(there))} 2>/dev/null; (exit $?)"'
            moved = await self._shell.run(going, timeout_s=MOVE_S)
            if moved.status == "busy":
                return moved
        result = await self._shell.run(
            command,
            timeout_s=limit_s,
            no_change_timeout_s=no_change_s,
            max_output_bytes=self._max_output_bytes,
            stdin="tty" if reads_terminal else "null",
        )
        if moved is None:
            return result
        return replace(
            result,
            restarted=result.restarted or moved.restarted,
            late_output=moved.late_output + result.late_output,
            notices=moved.notices + result.notices,
        )

    async def _type(self, text: str, limit_s: float, no_change_s: float | None) -> ShellResult | None:
        """None when there is nobody to type to."""
        key = KEY.fullmatch(text.strip())
        typed = chr(ord(key[1].upper()) & 0x1F) if key else text if text.endswith("\n") else f"{text}\n"
        if not await self._shell.send(typed):
            return None
        quiet_s = None if no_change_s is None else min(no_change_s, NO_CHANGE_AFTER_INPUT_S)
        return await self._shell.wait(timeout_s=limit_s, no_change_timeout_s=quiet_s, max_output_bytes=self._max_output_bytes)


def model_text(result: ShellResult, limit_s: float, no_change_s: float | None, *, was_restarted: bool = False) -> str:
    """What the model reads: the output, and in brackets what is not output."""
    late = result.late_output.strip("\n")
    parts = [
        NEW_SHELL if result.restarted and result.status == "ok" else "",
        f"[The shell was restarted: {STATE_IS_GONE}.]" if was_restarted else "",
        f"[Printed by background jobs before this call:]\n{late}\n[Output of this call:]" if late else "",
        result.output.rstrip("\n"),
        f"[{result.truncated_bytes:,} bytes of output were left out.]" if result.truncated_bytes else "",
        notice_lines(result.notices),
        _fate(result, limit_s, no_change_s),
    ]
    return "\n".join(filter(None, parts))


def _fate(result: ShellResult, limit_s: float, no_change_s: float | None) -> str:
    code = f"exit code {result.exit_code}"
    match result.status:
        case "ok":
            return f"[{code[0].upper()}{code[1:]}. Working directory: {result.cwd}]" if result.exit_code is not None else NOTHING_RUNS
        case "running":
            return (
                f"[Still running; it printed nothing for {no_change_s or 0.0:g} s. Wait with an empty command, "
                "or use is_input to type into it or to press C-c.]"
            )
        case "timeout" if not result.restarted:
            return f"[Ended: it ran longer than {limit_s:g} s. {code[0].upper()}{code[1:]}. Working directory: {result.cwd}]"
        case "timeout":
            ended = f"Ended: it ran longer than {limit_s:g} s and only went down with its shell"
            return f"[{ended}. A new shell is at {result.cwd}; {STATE_IS_GONE}.]"
        case "closed":
            ended = "The shell has ended" + (f" with {code}" if result.exit_code is not None else "")
            return f"[{ended}. A new one is at {result.cwd}; {STATE_IS_GONE}.]"
        case "busy" | "refused":  # the output says why
            return ""


def _in_double_quotes(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)
