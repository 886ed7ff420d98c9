"""The way to the network of a sandbox that has one: a proxy of ours that listens inside (`workers/sandbox/network`)."""

from __future__ import annotations

from workers.sandbox.local.identity import ProcessIdentity, is_running
from workers.sandbox.network import PORT, AllowListProxy, listen_inside


async def open_way_out(proxy: AllowListProxy, keeper: ProcessIdentity) -> None:
    """Begins to serve, before anything of the sandbox runs: nobody inside can have the port.

    Raises:
        OSError: it cannot listen there.
    """
    listener = await listen_inside(keeper.pid, PORT)
    if not is_running(keeper):  # its number may have become another's before it was looked at: the socket is in a network we do not know
        listener.close()
        raise OSError("PID 1 ended as its way to the network was opened")
    await proxy.serve(listener)
