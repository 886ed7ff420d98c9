"""What every launcher opens before it keeps anything: the name on this machine, Redis, the address for children. All of it goes back."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ops.node.files import FOLDER, NodeFiles, NodeTaken
from ops.node.handover import address_for_children
from ops.node.settings import NodeSettings
from ops.node_process import join_queue
from pipeline.folders import Folders
from pipeline.layout import check_layout
from pipeline.process import Shutdown, StoppedWhileWaiting, until_reached
from pipeline.redis_client import AsyncClient, command_client
from pipeline.settings import QueueSettings

EXIT_OK, EXIT_FAILED, EXIT_TAKEN = 0, 1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNode:
    """What a launcher has while it runs."""

    settings: NodeSettings
    boot: str
    """Of this launcher."""
    shutdown: Shutdown
    files: NodeFiles
    """Their lock is ours."""
    queue: QueueSettings
    client: AsyncClient
    """Redis has answered, and its layout is ours."""
    environment: Mapping[str, str]
    """Of the children: where Redis is."""


async def launch(settings: NodeSettings, config: Path | None, run: Callable[[OpenNode], Awaitable[int]]) -> int:
    """Opens a node, runs what keeps it, and closes it again; returns the exit code.

    Args:
        run: returns the exit code; may raise `NodeTaken` and `StoppedWhileWaiting` as long as it has started nothing.

    Raises:
        InvalidRequest, BrokerMisused, FolderError: settings that cannot work; nothing was started, or everything has ended.
    """
    shutdown = Shutdown()
    shutdown.on_signals(launcher=True)
    shutdown.on_parent_exit()
    boot = secrets.token_hex(8)
    namespace = QueueSettings.load(config).namespace
    try:
        async with AsyncExitStack() as stack:
            files = stack.enter_context(NodeFiles(Folders.from_environment().run / FOLDER, namespace, settings.node_name, boot))
            queue = join_queue(stack, config)
            client = command_client(queue)
            stack.push_async_callback(client.aclose)
            await until_reached(lambda: check_layout(client, queue), shutdown.stop)
            environment = stack.enter_context(address_for_children(queue, files.password_file))
            node = OpenNode(
                settings=settings, boot=boot, shutdown=shutdown, files=files, queue=queue, client=client, environment=environment
            )
            return await run(node)
    except NodeTaken as taken:
        print(f"rollstream: {taken}", file=sys.stderr)
        return EXIT_TAKEN
    except StoppedWhileWaiting:
        return EXIT_OK
