"""ZeroMQ and `jupyter_client`, as kernels need them: loading both takes 0.06 s of CPU, and a worker has no kernels of its own.

A process that owns sandboxes loads this when it enters `LocalSandboxes`, before it has any work.
"""

from __future__ import annotations

from collections.abc import Mapping

import zmq
import zmq.asyncio
from jupyter_client.asynchronous.client import AsyncKernelClient

UNREAD_MESSAGES = 32
"""Held here until they are read. What is more waits in the kernel's own process, and stops its cell (`kernel_boot.py`): it goes on as fast
as this process reads, and nothing is lost."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A larger one (a huge picture or value; what is printed comes in pieces) is dropped on its way, connection and all; the cell is then
marked incomplete. With `UNREAD_MESSAGES` it bounds what a kernel can make this process hold."""


def kernel_context() -> zmq.asyncio.Context:
    """The sockets of all kernels of a process come from one context, with bounds that must be set before a socket connects."""
    context = zmq.asyncio.Context()
    context.setsockopt(zmq.RCVHWM, UNREAD_MESSAGES)
    context.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    context.setsockopt(zmq.LINGER, 0)
    return context


class KernelClient(AsyncKernelClient):
    """Connects to the sockets that were looked at, by whatever name they have."""

    paths: Mapping[str, str] = {}
    """Of each channel."""

    def _make_url(self, channel: str) -> str:
        return f"ipc://{self.paths[channel]}"
