"""One live bash on a terminal of its own.

1. A command is never typed as it stands. What is typed is one line of ours that is shorter than any terminal's limit; in it a short text
   is one word, quoted so that it holds nothing but visible characters and blanks, and any other is named by the file it lies in. So neither
   that limit, nor quotes, here-documents, comments or control characters of the command can reach the terminal or that line. A disk takes
   longer to make a file than bash to run a short command.
2. A command has ended when bash says so on the control pipe: number NUL exit code NUL folder NUL NUL. Only bash has that pipe, commands
   run with it closed. The number is new for each command, so a late report of an interrupted one is not taken for the next.
3. The line reports by itself and again through PROMPT_COMMAND: Ctrl-C skips the rest of the line, a script may overwrite PROMPT_COMMAND.
   A second report of the same number is not made.
4. The line runs with stderr closed off and gives the command the terminal back, so `set -x` shows the command and not our line.
5. The terminal is put back into its first state before each command: what a crashed program did to it ends there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import signal
import termios
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

from workers.sandbox.base import ShellStdin
from workers.sandbox.capture import HeadTail
from workers.sandbox.errors import SessionStartError
from workers.sandbox.launcher import LaunchedProcess, Launcher, SharedFolder
from workers.sandbox.shell_output import LATE_BYTES, FencedOutput

CONTROL_FD = 198
"""Above what scripts use for their own redirections, below the smallest limit on open files that a spec may ask for."""
ROWS, COLUMNS = 50, 200
START_TIMEOUT_S = 20.0
FENCE_TIMEOUT_S = 0.25
"""The end fence follows the report within a millisecond, unless the terminal was taken from bash."""
LAST_WORDS_S = 0.1
"""How long a dead shell's terminal may still give what it held; background jobs keep it open without end."""
TYPE_TIMEOUT_S = 5.0
READ_BYTES = 64 * 1024
READS_A_WAKE = 32
"""A terminal gives 4 KiB a read; this many at a wake keep a flood cheap without starving the loop."""
INLINE_WRITE_BYTES = 64 * 1024
MAX_WORD_BYTES = 768
"""Of a text as a word. With the rest of the line it is below what a terminal takes at once: 4096 bytes on Linux, 1024 on macOS."""

ENVIRONMENT = {
    # No program may wait for a person: pagers print, editors and prompts fail at once.
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_PAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
    "PYTHONUNBUFFERED": "1",
}

SOURCED = re.compile(rb"\b(?:return|exit|logout)\b")
"""A text with one of these words is sourced: only there `return` is allowed, and `exit` neither speaks nor asks back. Any other text is
evaluated, which leaves DEBUG traps, BASH_SOURCE and error messages as they are in a plain shell."""

WORDLIKE = re.compile(rb"[\n\t -~]*")
"""What can be a word of the typed line. Text in other scripts lies in a file: how a terminal and an old bash take it is their affair."""

Wake = Literal["done", "timeout", "quiet", "ended"]


class RunningCommand:
    """A command between its line and its report."""

    def __init__(self, max_output_bytes: int, late: HeadTail) -> None:
        loop = asyncio.get_running_loop()
        # Digits only: a terminal set to translate letters cannot change them.
        self.number = str(secrets.randbelow(10**18))
        self.output = FencedOutput(self.number, max_output_bytes, late)
        self.report: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self.begun = asyncio.Event()
        self.fenced = asyncio.Event()
        self.last_output = loop.time()


class ShellSession:
    """One bash process, from its start to its end."""

    def __init__(self, launcher: Launcher, process: LaunchedProcess, master: int, control: int, folder: SharedFolder) -> None:
        self._launcher = launcher
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._master = master
        self._control = control
        self._reports = bytearray()
        self._command: RunningCommand | None = None
        self._late = HeadTail(LATE_BYTES)
        self._tty_closed = asyncio.Event()
        self.process = process
        self._ended = asyncio.create_task(process.wait(), name=f"shell {process.pid}")
        self._ended.add_done_callback(_retrieve)
        os.set_blocking(master, False)
        os.set_blocking(control, False)
        self._terminal = _quiet_terminal(master)

    @classmethod
    async def start(cls, launcher: Launcher, folder: SharedFolder, env: Mapping[str, str], cwd: str) -> ShellSession:
        """Starts bash in a folder that exists.

        Raises:
            OSError: bash or the folder is not there.
            SessionStartError: it does not answer.
        """
        launcher.check_open()
        boot = await asyncio.to_thread(folder.write, "boot.sh", resources.files(__package__).joinpath("shell_boot.sh").read_bytes())
        control, theirs = os.pipe()
        try:
            argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
            process, master = await launcher.spawn_pty(
                argv, env={**env, **ENVIRONMENT}, cwd=cwd, rows=ROWS, columns=COLUMNS, fds={CONTROL_FD: theirs}
            )
        except BaseException:
            os.close(control)
            raise
        finally:
            os.close(theirs)
        session = cls(launcher, process, master, control, folder)
        try:
            session._reset_terminal()
            first = session._expect(1024)
            first.output.has_begun = True  # the function that prints the first fence comes with this very line
            await session.type(f" __rs_dir={folder.inside}; . {boot}; __rs_end {first.number}\n".encode())
            if await session.wait(first, START_TIMEOUT_S) != "done":
                raise SessionStartError("shell", "bash did not report", first.output.take().text()[-500:])
        except BaseException:
            session.close()
            raise
        session.finish(first)
        session._late = HeadTail(LATE_BYTES)
        return session

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def begin(self, text: bytes, max_output_bytes: int, stdin: ShellStdin) -> RunningCommand:
        """Starts a command; the caller waits for it, then finishes it."""
        load, do = await self._given(text)
        self._reset_terminal()
        command = self._expect(max_output_bytes)
        source = "/dev/null" if stdin == "null" else "/dev/tty"
        begin, end = f"__rs_begin {command.number}", f"__rs_end {command.number}"
        line = f"{{ {load}{begin}; {do} <{source} 2>/dev/tty {CONTROL_FD}>&-; {end}; }} 2>/dev/null"
        with contextlib.suppress(TimeoutError):  # a shell that does not read its line does not report either: the wait tells
            await self.type(f" PROMPT_COMMAND='{{ {end}; }} 2>/dev/null'; {line}\n".encode())
        return command

    async def wait(self, command: RunningCommand, timeout_s: float, no_change_timeout_s: float | None = None) -> Wake:
        """Returns when the command has reported (`done`), the shell has ended, or a time is up."""
        deadline = self._loop.time() + timeout_s
        while True:
            if command.report.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FENCE_TIMEOUT_S):
                        await command.fenced.wait()
                return "done"
            if self._ended.done():
                self._ended.result()  # raises when the whole sandbox ended
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await self._tty_closed.wait()
                if not command.report.done():
                    return "ended"
                continue
            now = self._loop.time()
            if now >= deadline:
                return "timeout"
            until = deadline
            if no_change_timeout_s is not None:
                quiet = command.last_output + no_change_timeout_s
                if now >= quiet:
                    return "quiet"
                until = min(until, quiet)
            events: set[asyncio.Future[Any]] = {command.report, self._ended}
            await asyncio.wait(events, timeout=until - now, return_when=asyncio.FIRST_COMPLETED)

    async def wait_begun(self, command: RunningCommand, timeout_s: float) -> None:
        """Returns when bash has taken the line, or after the time.

        Ctrl-C empties the terminal's queue: one that comes before would take the line with it, and bash would never report.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await command.begun.wait()

    def finish(self, command: RunningCommand) -> None:
        """Nothing more is expected of the command. Until the next one nobody reads: a background flood waits in its own process."""
        self._loop.remove_reader(self._master)
        self._loop.remove_reader(self._control)
        self._late = command.output.after
        self._command = None

    async def exit_code(self) -> int:
        """Of the shell, when it has ended; as a shell counts."""
        code = await asyncio.shield(self._ended)
        return code if code >= 0 else 128 - code

    async def type(self, data: bytes) -> None:
        """Writes to the terminal as if typed.

        Raises:
            TimeoutError: the terminal takes nothing more: nobody reads what was typed before.
        """
        data = self._typed(data)
        if not data:
            return
        async with asyncio.timeout(TYPE_TIMEOUT_S):
            while data:
                writable: asyncio.Future[None] = self._loop.create_future()
                self._loop.add_writer(self._master, _resolve, writable)
                try:
                    await writable
                finally:
                    self._loop.remove_writer(self._master)
                data = self._typed(data)

    def _typed(self, data: bytes) -> bytes:
        """What of it the terminal does not take now."""
        try:
            return data[os.write(self._master, data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: the terminal's other side is gone, `wait` tells
                raise
            return b""

    async def interrupt(self, character: bytes) -> None:
        """Types Ctrl-C or its like, into a terminal that hears it."""
        self._reset_terminal()
        with contextlib.suppress(TimeoutError):
            await self.type(character)

    def kill_foreground(self) -> None:
        """Kills what the terminal belongs to now, but not the shell: its state is to be kept."""
        with contextlib.suppress(OSError):
            group = os.tcgetpgrp(self._master)
            if group > 0 and group != self.process.pid:
                os.killpg(group, signal.SIGKILL)
                return
        self._launcher.kill(self.process, "others", signal.SIGKILL)  # substitutions run in the shell's own group

    def close(self) -> None:
        """Ends bash and its session at once; does not wait."""
        if self._master < 0:
            return
        self._loop.remove_reader(self._master)
        self._loop.remove_reader(self._control)
        self._launcher.kill(self.process, "tree", signal.SIGKILL)
        os.close(self._master)
        os.close(self._control)
        self._master = self._control = -1

    async def _given(self, text: bytes) -> tuple[str, str]:
        """Gives bash a command's text: what loads it in the line to be typed, and what runs it."""
        is_sourced = SOURCED.search(text) is not None
        word = None if is_sourced else as_word(text)
        if word is not None:
            return f"__rs_text={word}; ", 'eval "$__rs_text"'
        if len(text) <= INLINE_WRITE_BYTES:
            self._folder.write("command", text)
        else:
            await asyncio.to_thread(self._folder.write, "command", text)
        return ("", '. "$__rs_dir/command"') if is_sourced else ("__rs_load; ", 'eval "$__rs_text"')

    # -- what comes in --------------------------------------------------------------------------------------------------------------

    def _expect(self, max_output_bytes: int) -> RunningCommand:
        self._command = RunningCommand(max_output_bytes, self._late)
        if not self._tty_closed.is_set():
            self._loop.add_reader(self._master, self._read_terminal)
        self._loop.add_reader(self._control, self._read_control)
        return self._command

    def _read_terminal(self) -> None:
        command = self._command
        assert command is not None
        for _ in range(READS_A_WAKE):
            try:
                data = os.read(self._master, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:  # EIO: nobody has the terminal open any more
                data = b""
            if not data:
                self._loop.remove_reader(self._master)
                self._tty_closed.set()
                return
            command.last_output = self._loop.time()
            command.output.feed(data)
            if command.output.has_begun:
                command.begun.set()
            if command.output.is_complete:
                command.fenced.set()

    def _read_control(self) -> None:
        try:
            data = os.read(self._control, READ_BYTES)
        except BlockingIOError:
            return
        if not data:  # bash closed it: it ends, or became another program
            self._loop.remove_reader(self._control)
            return
        self._reports += data
        while (at := self._reports.find(b"\0\0")) >= 0:
            number, code, folder = bytes(self._reports[:at]).split(b"\0", 2)
            del self._reports[: at + 2]
            command = self._command
            if command is not None and number == command.number.encode() and not command.report.done():
                command.report.set_result((int(code), folder))

    def _reset_terminal(self) -> None:
        with contextlib.suppress(termios.error):  # the other side is gone, `wait` tells
            termios.tcsetattr(self._master, termios.TCSANOW, self._terminal)


def as_word(text: bytes) -> str | None:
    """A text as one word of a line for bash; None when it is too long for that, or holds more than visible characters, blanks and lines."""
    if len(text) > MAX_WORD_BYTES or not WORDLIKE.fullmatch(text):
        return None
    quoted = text.replace(b"\\", b"\\\\").replace(b"'", b"\\'").replace(b"\n", b"\\n").replace(b"\t", b"\\t")
    return f"$'{quoted.decode('ascii')}'" if len(quoted) <= MAX_WORD_BYTES else None


def _quiet_terminal(master: int) -> list[Any]:
    """The state of a terminal that passes on what programs print and shows nothing of what is typed."""
    attributes = termios.tcgetattr(master)
    attributes[0] &= ~(termios.IXON | termios.IXOFF)  # a stray Ctrl-S would freeze the session
    attributes[1] &= ~termios.ONLCR
    attributes[3] &= ~(termios.ECHO | termios.ECHOE | termios.ECHOK | termios.ECHONL)
    attributes[3] |= termios.ICANON | termios.ISIG | termios.IEXTEN
    return attributes


def _retrieve(task: asyncio.Task[int]) -> None:
    """A sandbox may end while nobody waits for its shell: that is no error to complain about."""
    if not task.cancelled():
        task.exception()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
