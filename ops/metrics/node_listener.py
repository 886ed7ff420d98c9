"""Where a launcher answers for its node: from before it has the name until after its last process.

listens ──▶ has the name: empty folder, target file ──▶ processes ──▶ target file removed, if it ended as planned ──▶ silent
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ops.metrics.listener import listening
from ops.metrics.node import NodeMetrics
from ops.metrics.settings import MetricsSettings
from ops.metrics.targets import TargetFile
from ops.node.supervision import Process


class NodeListener:
    """One launcher's; an async context manager.

    Args:
        port: 0 = a free one, -1 = it answers nowhere.
        folder: for measures, and for nothing else.
        processes: asked for those of the node at each scrape.
    """

    def __init__(
        self, settings: MetricsSettings, port: int, namespace: str, node: str, folder: Path, processes: Callable[[], Sequence[Process]]
    ) -> None:
        self._settings, self._port, self._folder, self._processes = settings, port, folder, processes
        self._target = TargetFile(settings, namespace, "node", node)
        self._node = node
        self._metrics: NodeMetrics | None = None
        self._stack = AsyncExitStack()
        self.url = ""
        """Where it answers; empty = nowhere."""

    async def __aenter__(self) -> Self:
        """Listens.

        Raises:
            InvalidRequest: it cannot.
        """
        if self._port >= 0:
            where = await self._stack.enter_async_context(listening(self._settings, self._port, self._text, field="node.metrics_port"))
            self.url = f"{where}/metrics"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    def begin(self) -> Mapping[str, str]:
        """The name is this launcher's; answers variables for the environment of its processes.

        Raises:
            InvalidRequest, FolderError: the target file or the folder cannot be written.
        """
        if not self.url:
            return {}
        self._metrics = self._stack.enter_context(NodeMetrics(self._node, self._folder))
        self._target.write(self.url)
        return {"ROLLSTREAM_WORKER_MEASURES_DIR": str(self._folder)}

    def end(self) -> None:
        """The node ends as planned."""
        self._target.remove()

    def on_change(self) -> None:
        """Processes came or went: what those counted that have ended is kept, and their files go, also where nobody scrapes."""
        if self._metrics is not None:
            self._metrics.forget_ended({each.pid for each in self._processes() if each.runs})

    async def _text(self) -> bytes:
        return b"" if self._metrics is None else self._metrics.text(self._processes())
