"""A bash that outlives its own death: sessions (`shell_session.py`) come and go, the working directory stays.

What a time limit does, each step when the one before did not help within a second: Ctrl-C, Ctrl-\\, SIGKILL of the foreground group, a new
shell. All but the last keep the shell's variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping

from workers.sandbox.base import DEFAULT_OUTPUT_BYTES, ShellStdin
from workers.sandbox.errors import SessionStartError
from workers.sandbox.launcher import Launcher, SharedFolder
from workers.sandbox.results import ShellResult, ShellStatus
from workers.sandbox.shell_session import RunningCommand, ShellSession, Wake
from workers.sandbox.terminal_text import plain_text

STEP_S = 1.0
"""What a program gets to end after each step of the ladder."""
CTRL_C, CTRL_BACKSLASH = b"\x03", b"\x1c"
BUSY_TEXT = "Not run: the command before this one still runs. Wait for it, send it input, or interrupt it."
NUL_TEXT = "Not run: the command holds a NUL byte, which bash cannot take."


class PtyShell:
    """The `Shell` of every backend that can start a process on a terminal."""

    def __init__(self, launcher: Launcher, folder: SharedFolder, env: Mapping[str, str], workdir: str) -> None:
        self._launcher = launcher
        self._folder = folder
        self._env = env
        self._workdir = workdir
        self._cwd = workdir
        self._session: ShellSession | None = None
        self._running: RunningCommand | None = None
        self._ended_unseen = False
        self._turn = asyncio.Lock()

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        no_change_timeout_s: float | None = None,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        stdin: ShellStdin = "null",
    ) -> ShellResult:
        async with self._turn:
            started = time.monotonic()
            if self._running is not None:
                return ShellResult(status="busy", output=BUSY_TEXT, exit_code=None, cwd=self.cwd)
            if "\0" in command:
                return ShellResult(status="refused", output=NUL_TEXT, exit_code=None, cwd=self.cwd)
            session, running, wake = await self._begun(command, timeout_s, no_change_timeout_s, max_output_bytes, stdin)
            async with self._ending_on_failure(session):
                return await self._result(session, running, wake, started)

    async def wait(
        self, *, timeout_s: float, no_change_timeout_s: float | None = None, max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    ) -> ShellResult:
        async with self._turn:
            started = time.monotonic()
            session, running = self._session, self._running
            if session is None or running is None:
                return ShellResult(status="ok", output="", exit_code=None, cwd=self.cwd)
            async with self._ending_on_failure(session):
                running.last_output = asyncio.get_running_loop().time()
                wake = await session.wait(running, timeout_s, no_change_timeout_s)
                return await self._result(session, running, wake, started)

    async def send(self, text: str) -> bool:
        if self._session is None or self._running is None:
            return False
        try:
            await self._session.type(_encoded(text))
        except TimeoutError:
            return False
        return True

    async def interrupt(self) -> None:
        if self._session is not None:
            await self._session.interrupt(CTRL_C)

    async def close(self) -> None:
        self._drop_session()

    @property
    def cwd(self) -> str:
        """Working directory after the last command."""
        return os.fsencode(self._cwd).decode("utf-8", "replace")

    async def _begun(
        self, command: str, timeout_s: float, no_change_timeout_s: float | None, max_output_bytes: int, stdin: ShellStdin
    ) -> tuple[ShellSession, RunningCommand, Wake]:
        """Runs a command in a shell that lives: one that was killed before it took its line has run nothing, so another one gets it."""
        tries = 2
        while True:
            tries -= 1
            session = await self._live_session()
            async with self._ending_on_failure(session):
                running = await session.begin(_encoded(command), max_output_bytes, stdin)
                self._running = running
                wake = await session.wait(running, timeout_s, no_change_timeout_s)
            if wake != "ended" or running.begun.is_set() or not tries:
                return session, running, wake
            self._drop_session()
            self._ended_unseen = True

    async def _live_session(self) -> ShellSession:
        if self._session is not None and self._session.has_ended:
            self._drop_session()
            self._ended_unseen = True
        if self._session is None:
            self._session = await self._start_session()
        return self._session

    async def _start_session(self) -> ShellSession:
        problem: OSError | None = None
        for folder in dict.fromkeys((self._cwd, self._workdir, "/")):  # the last folder may have been deleted, its parent too
            try:
                session = await ShellSession.start(self._launcher, self._folder, self._env, folder)
            except OSError as error:
                problem = error
            else:
                self._cwd = folder
                return session
        raise SessionStartError("shell", f"bash cannot be started: {problem}") from problem

    @contextlib.asynccontextmanager
    async def _ending_on_failure(self, session: ShellSession) -> AsyncIterator[None]:
        """A call that does not return its answer leaves no half-run command behind: the session goes."""
        try:
            yield
        except BaseException:
            if self._session is session:
                self._drop_session()
            raise

    async def _result(self, session: ShellSession, running: RunningCommand, wake: Wake, started: float) -> ShellResult:
        """Turns how a wait ended into an answer, after ending what has to be ended."""
        status: ShellStatus = "ok"
        if wake == "quiet":
            return self._answer("running", running, None, started)
        if wake == "timeout":
            status = "timeout"
            wake = await self._end_command(session, running)
        if wake == "done":
            self._launcher.check_open()
            code, folder = running.report.result()
            session.finish(running)
            self._running = None
            self._cwd = os.fsdecode(folder) or self._cwd
            return self._answer(status, running, code, started)
        exit_code = await session.exit_code() if wake == "ended" else None
        self._drop_session()
        return self._answer("closed" if status == "ok" else status, running, exit_code, started, restarted=True)

    async def _end_command(self, session: ShellSession, running: RunningCommand) -> Wake:
        await session.wait_begun(running, STEP_S)
        wake: Wake = "timeout"
        for character in (CTRL_C, CTRL_BACKSLASH, b""):
            if character:
                await session.interrupt(character)
            else:
                session.kill_foreground()
            wake = await session.wait(running, STEP_S)
            if wake != "timeout":
                break
        return wake

    def _answer(
        self, status: ShellStatus, running: RunningCommand, code: int | None, started: float, *, restarted: bool = False
    ) -> ShellResult:
        late = running.output.late.text() if running.output.has_begun else ""
        shown = running.output.take()
        restarted, self._ended_unseen = restarted or self._ended_unseen, False
        return ShellResult(
            status=status,
            output=plain_text(shown.text()),
            exit_code=code,
            cwd=self.cwd,
            restarted=restarted,
            late_output=plain_text(late),
            truncated_bytes=shown.dropped_bytes,
            took_s=time.monotonic() - started,
        )

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._running = None


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
