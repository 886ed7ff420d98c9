"""One sandbox of a kind for many tests: whoever has it finds it with nothing running and no file of those before.

To start a sandbox with all around it, and to end it, takes some ten times as long as most tests use it; so tests that ask what a sandbox
does, and not how it begins or ends, have one in turn. A test that leaves it ended, or full, has cost the next one a new one.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.contract.sandbox.kinds import Kind
from workers.sandbox import Sandbox, SandboxError, SandboxOwner
from workers.sandbox.local.folder import remove_tree

CLEAR = "chmod -R u+rwX {0}; find {0} -mindepth 1 -delete"
END_ALL = "kill -9 -1"
"""Behind walls: PID 1 is deaf to it, and nothing of the node is in reach."""
CLEAR_S = 20.0
SHARED_KERNEL = "shared"
NAMED = ("main", "a", "b", "c")
"""Shells and kernels that tests have by names of their own."""


@dataclass(slots=True)
class Room:
    """A sandbox, and the folder below which its provider has its own."""

    sandbox: Sandbox
    place: Path
    _stack: AsyncExitStack = field(repr=False)
    _kernel_stays: bool
    _ends_all: bool
    _uses: int = 0

    @classmethod
    async def open(cls, kind: Kind, job: str, *, kernel_stays: bool) -> Self:
        async with AsyncExitStack() as stack:
            place = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
            stack.callback(remove_tree, place)
            provider = await stack.enter_async_context(kind.open(place))
            owner = SandboxOwner(job_id=job, attempt=1, boot_id="boot")
            sandbox = await stack.enter_async_context(await provider.start(kind.spec, owner))
            return cls(sandbox, place, stack.pop_all(), kernel_stays, kind.walls and not kernel_stays)
        raise AssertionError("a stack lets every exception through")

    @property
    def session(self) -> str:
        """A name for the shell and the kernel of the test that has it now."""
        return f"test-{self._uses}"

    async def clear(self) -> bool:
        """For the next; whether that worked."""
        session, self._uses = self.session, self._uses + 1
        try:
            for name in (session, *NAMED):
                await self.sandbox.shell(name).close()
                await self.sandbox.kernel(name).close()
            if self._ends_all:
                await self.sandbox.exec(END_ALL, timeout_s=CLEAR_S)
            clear = CLEAR.format('"$PWD"' if self._kernel_stays else '"$PWD" "$TMPDIR"')  # where a kernel has files of its own
            return (await self.sandbox.exec(clear, timeout_s=CLEAR_S)).returncode == 0
        except SandboxError:
            return False

    async def close(self) -> None:
        await self._stack.aclose()


class Rooms:
    """Those of one module.

    Args:
        kernel_stays: the kernel `SHARED_KERNEL` is handed on too; then what tests left running is theirs to end.
    """

    def __init__(self, *, kernel_stays: bool = False) -> None:
        self._kernel_stays = kernel_stays
        self._free: dict[str, Room] = {}

    async def enter(self, name: str, kind: Kind) -> Room:
        return self._free.pop(name, None) or await Room.open(kind, f"tests of {name}", kernel_stays=self._kernel_stays)

    async def leave(self, name: str, room: Room) -> None:
        if await room.clear():
            self._free[name] = room
        else:
            await room.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for room in self._free.values():
            await room.close()
