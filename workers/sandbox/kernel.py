"""An IPython that outlives its own death: kernel processes (`kernel_connection.py`) come and go, each with fresh sockets and a fresh key.

1. A cell has ended when its reply has come AND the kernel said it is idle, which comes behind all its output. The reply can overtake much
   output, so idle is waited for as long as anything is heard. Output is lost only with its connection (one message too large to take);
   nothing is heard then, and the cell is marked incomplete. A reply that stays away after idle means a kernel that cannot answer any
   more, and it is killed.
2. Whatever is waited for is raced against the end of the kernel's process.
3. The status comes from the reply: an error's own message can be lost.
4. At its limit a cell is interrupted. A cell that ends after that is over, and the next one is not sent before the kernel has said that
   the interrupt was delivered: it could hit that one instead. A kernel that does not end its cell is killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from workers.sandbox.base import DEFAULT_OUTPUT_BYTES
from workers.sandbox.kernel_connection import Cell, KernelConnection, KernelProgram
from workers.sandbox.kernel_output import CellOutput
from workers.sandbox.launcher import Launcher, SharedFolder
from workers.sandbox.results import KernelResult, KernelStatus

if TYPE_CHECKING:
    import zmq.asyncio

INTERRUPT_S = 3.0
"""What a cell gets to end after an interrupt; one that ignores it, or hangs in C code, loses its kernel."""
INTERRUPT_AGAIN_S = 0.5
QUIET_S = 0.5
QUIET_LOOKS = 6
"""So often in a row nothing was heard after a reply when the rest of the output is given up. Looks and not one time: a loop that was held
up for seconds has looked once, and reads before it looks again."""
AFTER_REPLY_S = 20.0
"""The rest of the output of a cell that has replied gets no more; a thread of the cell could print for ever."""
REPLY_AFTER_IDLE_S = 2.0
EXIT_S = 3.0
"""What a kernel that was told to exit by its cell gets to do so."""

NO_ANSWER_TEXT = "The kernel ran the cell and could not answer (its output streams may be broken); it was stopped."

Wake = Literal["done", "incomplete", "ended", "timeout", "mute"]


class IpcKernel:
    """The `Kernel` of every backend that can start a process and share a folder with it."""

    def __init__(
        self,
        launcher: Launcher,
        program: KernelProgram,
        given: SharedFolder,
        sockets: SharedFolder,
        env: Mapping[str, str],
        workdir: str,
        context: zmq.asyncio.Context,
    ) -> None:
        self._launcher = launcher
        self._program = program
        self._given = given
        self._sockets = sockets
        self._env = env
        self._workdir = workdir
        self._context = context
        self._live: KernelConnection | None = None
        self._lost_state = False
        self._turn = asyncio.Lock()

    async def run(self, code: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES, max_images: int = 0) -> KernelResult:
        async with self._turn:
            started = time.monotonic()
            live = await self._live_kernel()
            fresh, self._lost_state = self._lost_state, False
            output = CellOutput(max_output_bytes, max_images)
            # A lone surrogate cannot be sent; written as an escape it means the same where it can stand at all, in a string.
            cell = live.begin(code.encode("utf-8", "backslashreplace").decode(), output)
            try:
                wake = await self._wait(live, cell, timeout_s)
                timed_out = wake == "timeout"
                if timed_out:
                    wake = await self._interrupt(live, cell)
                if wake == "done" or wake == "incomplete":
                    await self._leave_if_told(live, cell.reply.result())
                status, text = self._judge(live, cell, wake, timed_out)
                if wake == "incomplete" and self._live is live and not await live.listen_again():
                    self._drop()
            except BaseException:
                self._drop()
                raise
            if text:
                output.say(text)
            return KernelResult(
                status=status,
                output=output.shown,
                stdout=output.stdout,
                result=output.result,
                error_name=output.error_name,
                error_text=text or output.error_text,
                state_lost=self._live is None,
                fresh_kernel=fresh,
                cwd=output.cwd,
                incomplete=wake == "incomplete",
                truncated_bytes=output.truncated_bytes,
                took_s=time.monotonic() - started,
                images=tuple(output.images),
            )

    async def interrupt(self) -> None:
        if self._live is not None and self._turn.locked():
            self._live.interrupt()

    async def restart(self) -> None:
        self._drop()

    async def close(self) -> None:
        self._drop()

    async def _live_kernel(self) -> KernelConnection:
        if self._live is not None and self._live.has_ended:
            self._live.ended.result()  # raises when the whole sandbox ended
            self._drop()
        if self._live is None:
            self._live = await KernelConnection.start(
                self._launcher, self._program, self._given, self._sockets, self._env, self._workdir, self._context
            )
        return self._live

    async def _wait(self, live: KernelConnection, cell: Cell, timeout_s: float) -> Wake:
        """Waits for both ends of the cell, the end of the kernel, or the time."""
        idle = asyncio.ensure_future(cell.idle.wait())
        try:
            await _first_of(cell.reply, idle, live.ended, timeout_s=timeout_s)
            if not cell.reply.done() and idle.done():
                await _first_of(cell.reply, live.ended, timeout_s=REPLY_AFTER_IDLE_S)
                if not cell.reply.done() and not live.ended.done():
                    return "mute"
            if cell.reply.done():
                await self._hear_the_rest(live, idle)
                cell.output.take_reply(cell.reply.result())
                return "done" if idle.done() else "incomplete"
            if live.ended.done():
                live.ended.result()  # raises when the whole sandbox ended
                return "ended"
            return "timeout"
        finally:
            idle.cancel()

    async def _hear_the_rest(self, live: KernelConnection, idle: asyncio.Future[Any]) -> None:
        deadline = time.monotonic() + AFTER_REPLY_S
        n_quiet = 0
        while n_quiet < QUIET_LOOKS and time.monotonic() < deadline:
            n_heard = live.n_heard
            await _first_of(idle, live.ended, timeout_s=QUIET_S)
            if idle.done() or live.ended.done():
                return
            n_quiet = n_quiet + 1 if live.n_heard == n_heard else 0

    async def _interrupt(self, live: KernelConnection, cell: Cell) -> Wake:
        """Interrupts until the cell ends or the time is up: an interrupt that comes before the cell's own code has begun is lost on it."""
        deadline = time.monotonic() + INTERRUPT_S
        delivered: list[asyncio.Future[Any]] = []
        wake: Wake = "timeout"
        while wake == "timeout" and (left := deadline - time.monotonic()) > 0:
            delivered.append(live.interrupt())
            wake = await self._wait(live, cell, min(INTERRUPT_AGAIN_S, left))
        for answer in delivered if wake in ("done", "incomplete") else ():
            await _first_of(answer, live.ended, timeout_s=deadline - time.monotonic())
            if not answer.done():
                return "timeout"
        return wake

    async def _leave_if_told(self, live: KernelConnection, reply: Mapping[str, Any]) -> None:
        """`exit()` in a cell ends the kernel after its reply: wait for that, so that no later cell is sent to a kernel that leaves."""
        if any(payload.get("source") == "ask_exit" for payload in reply.get("payload") or ()):
            await _first_of(live.ended, timeout_s=EXIT_S)
            self._drop()

    def _judge(self, live: KernelConnection, cell: Cell, wake: Wake, timed_out: bool) -> tuple[KernelStatus, str]:
        """The status, and what to say when the kernel itself was the trouble; drops a kernel that is of no use any more."""
        if wake == "ended":
            text = live.how_it_ended()
            self._drop()
            return "kernel_died", text
        if wake == "timeout" or (wake == "mute" and timed_out):
            self._drop()
            return "timeout", ""
        if wake == "mute":
            self._drop()
            return "kernel_died", NO_ANSWER_TEXT
        reply = cell.reply.result()
        status: KernelStatus = "ok" if reply.get("status") == "ok" else "error"
        if timed_out and status == "error":  # one that ended well in the last moment has ended well
            status = "timeout"
        return status, ""

    def _drop(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None
            self._lost_state = True


async def _first_of(*events: asyncio.Future[Any], timeout_s: float) -> None:
    await asyncio.wait(events, timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED)
