"""A listening socket inside a sandbox's network, held outside (`listen_inside.py`)."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("listen_inside.py")
ENTERING = Path(__file__).parents[1] / "local" / "holder" / "entering.py"
TIMEOUT_S = 20.0
"""It takes some 30 ms; a machine that needs this long is not one to start sandboxes on."""


async def listen_inside(keeper_pid: int, port: int) -> socket.socket:
    """Listens on 127.0.0.1:`port` in the network of the sandbox whose PID 1 that is; the caller closes the socket.

    Raises:
        OSError: it could not be opened; says what the program said.
    """
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        argv = [sys.executable, "-I", "-S", str(PROGRAM), str(ENTERING), str(keeper_pid), str(port)]
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        with theirs:
            process = await asyncio.create_subprocess_exec(*argv, stdin=theirs.fileno(), stdout=null, stderr=pipe, start_new_session=True)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                _, said = await process.communicate()
        except TimeoutError:
            raise OSError(f"no listening socket inside the sandbox within {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        numbers = array.array("i")
        with contextlib.suppress(BlockingIOError):
            _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(numbers.itemsize), getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers.frombytes(payload[: numbers.itemsize])
        if not numbers:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise OSError(f"no listening socket inside the sandbox: {last}")
        os.set_inheritable(numbers[0], False)
        listener = socket.socket(fileno=numbers[0])
        listener.setblocking(False)
        return listener
