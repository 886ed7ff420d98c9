"""Shells and kernels of a sandbox that something watches: what they answer says too what was ended or refused meanwhile.

A cancelled call, or one that raises, takes no notice away: the next result has it. No call begins while something is being ended.
"""

from __future__ import annotations

from dataclasses import replace

from workers.sandbox.base import DEFAULT_OUTPUT_BYTES, Kernel, Shell, ShellStdin
from workers.sandbox.limits import Watch
from workers.sandbox.results import KernelResult, ShellResult


class WatchedShell:
    """A shell, with the notices of its sandbox in its results."""

    def __init__(self, shell: Shell, watch: Watch) -> None:
        self._shell = shell
        self._watch = watch
        self.send = shell.send
        self.interrupt = shell.interrupt
        self.close = shell.close

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        no_change_timeout_s: float | None = None,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        stdin: ShellStdin = "null",
    ) -> ShellResult:
        await self._watch.quiet()
        told = self._watch.notices.told
        result = await self._shell.run(
            command, timeout_s=timeout_s, no_change_timeout_s=no_change_timeout_s, max_output_bytes=max_output_bytes, stdin=stdin
        )
        return replace(result, notices=self._watch.take_notices(told))

    async def wait(
        self, *, timeout_s: float, no_change_timeout_s: float | None = None, max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    ) -> ShellResult:
        await self._watch.quiet()
        told = self._watch.notices.told
        result = await self._shell.wait(timeout_s=timeout_s, no_change_timeout_s=no_change_timeout_s, max_output_bytes=max_output_bytes)
        return replace(result, notices=self._watch.take_notices(told))


class WatchedKernel:
    """A kernel, with the notices of its sandbox in its results."""

    def __init__(self, kernel: Kernel, watch: Watch) -> None:
        self._kernel = kernel
        self._watch = watch
        self.interrupt = kernel.interrupt
        self.restart = kernel.restart
        self.close = kernel.close

    async def run(self, code: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES, max_images: int = 0) -> KernelResult:
        await self._watch.quiet()
        told = self._watch.notices.told
        result = await self._kernel.run(code, timeout_s=timeout_s, max_output_bytes=max_output_bytes, max_images=max_images)
        return replace(result, notices=self._watch.take_notices(told))
