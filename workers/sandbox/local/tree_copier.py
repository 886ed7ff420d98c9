"""Runs the copying process (`tree_copy.py`), one for each copy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workers.sandbox.local.environment import library_paths

SCRIPT = Path(__file__).with_name("tree_copy.py")
END_S = 5.0
"""A copy that is told to end puts back some modes and is gone."""

CopyTrouble = Literal["gone", "too_large", "full", "denied"]


class CopyError(Exception):
    """Files could not be copied; what was copied so far is of no use."""

    def __init__(self, trouble: CopyTrouble, detail: str) -> None:
        super().__init__(trouble, detail)
        self.trouble: CopyTrouble = trouble
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What one copy occupies, where nothing of it is shared."""

    bytes: int
    files: int


async def copy_layers(
    what: Literal["take", "restore"], source: Path, target: Path, layers: Sequence[str], *, max_bytes: int, max_files: int, floor_bytes: int
) -> Copied:
    """Copies folders of one folder into another, which exists. Who is cancelled has ended the copy by then.

    Args:
        floor_bytes: of free disk, below which nothing more is copied.

    Raises:
        CopyError
    """
    question = {"from": str(source), "to": str(target), "layers": list(layers)}
    bounds = {"max_bytes": max_bytes, "max_files": max_files, "floor_bytes": floor_bytes}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(SCRIPT), what, stdin=pipe, stdout=pipe, stderr=pipe,
        cwd="/", env=library_paths(), start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: its answer says why
            process.stdin.write(json.dumps(question | bounds).encode() + b"\n")
            await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            said = (await process.stderr.read()).decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise CopyError("denied", f"the process that copies files ended: {said or 'it was killed'}")
    finally:
        await asyncio.shield(asyncio.ensure_future(_end(process)))
    answer = json.loads(line)
    if "trouble" in answer:
        raise CopyError(answer["trouble"], answer["detail"])
    return Copied(**answer)


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
