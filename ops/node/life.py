"""One life of a launcher, whatever it keeps: the name in Redis, its processes, what is said of them, and the end.

    name -> what a dead predecessor left -> processes -> told to end, or a crash too many -> the processes end -> name given up

The promises are those of docs/adr/0027-node.md; which processes there are, and in which order they end, is its owner's.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import structlog

from ops.child_processes import ChildProcesses
from ops.logs.keeper import LogKeeper
from ops.logs.places import scratch_folder
from ops.node.beside import until_clock
from ops.node.membership import Membership, launcher_fields
from ops.node.opening import EXIT_FAILED, EXIT_OK, EXIT_TAKEN, OpenNode
from ops.node.restarts import RestartPolicy
from ops.node.supervision import CrashLoop, Process, Supervision
from pipeline.folders import Folders, make_folder, make_private_folder
from pipeline.scripts.node_calls import Asked, NodeScripts
from pipeline.scripts.runner import Arg

log = structlog.get_logger(__name__)


class Life:
    """One life of a launcher that has the name on this machine already.

    Args:
        fields: what is said of it beside what every launcher says, asked for at each beat.
        on_asked: told what people asked beside a drain, whenever that is something else.
        on_change: called after each start and end of a process, before it is said.
    """

    def __init__(
        self,
        node: OpenNode,
        *,
        fields: Callable[[], Mapping[str, Arg]],
        on_asked: Callable[[Asked], None] = lambda asked: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._files, self._shutdown = node.settings, node.files, node.shutdown
        self._fields, self._on_asked, self._on_change = fields, on_asked, on_change
        self.name = node.settings.node_name
        self.folders = Folders.from_environment()
        make_private_folder(self.folders.scratch, "ROLLSTREAM_SCRATCH_DIR")
        self.logs = make_folder(scratch_folder(self.folders, self.name))
        self._log = LogKeeper.of_node(self.folders, self.name, max_mib=node.settings.log_max_mib, files=node.settings.log_files)
        self._environment = {**self._log.environment, **node.environment}
        self._ends_at_s = node.settings.ends_at_s(now_s=time.time())
        self._supervision: Supervision | None = None
        self._membership = Membership(
            NodeScripts(node.client, node.queue.namespace),
            self.name,
            node.boot,
            lease_s=node.queue.lease_s,
            fields=self._all_fields,
            on_asked=self._asked,
            on_lost=self._lost,
        )
        self.state, self.why = "starting", ""
        self.has_lost_name = False
        self.failed: CrashLoop | None = None
        """What crashed, if that ended it."""

    @property
    def processes(self) -> Sequence[Process]:
        """Those that it keeps; none before it starts any."""
        return () if self._supervision is None else self._supervision.processes

    @contextlib.asynccontextmanager
    async def named(self) -> AsyncIterator[None]:
        """The name in Redis is ours, the log is kept, and nothing runs of what a dead launcher of this name left.

        Raises:
            NodeTaken, StoppedWhileWaiting: nothing was started.
        """
        await self._membership.take(self._files.dead_boot, self._shutdown.stop)
        with self._log:
            if ended := await asyncio.to_thread(self._files.end_predecessor):
                log.warning("predecessor_cleaned_up", ended=ended, what="a launcher of this node was killed, and these outlived it")
            yield

    @contextlib.contextmanager
    def supervised(self, policy: RestartPolicy, environment: Mapping[str, str] | None = None) -> Iterator[Supervision]:
        """What starts and keeps the processes; leaving it kills those that are left.

        Args:
            environment: of the processes, beside Redis and the log.
        """
        with ChildProcesses(self.logs, {**self._environment, **(environment or {})}) as children:
            self._supervision = Supervision(children, policy, on_change=self._changed, said_by=self._log.said_by)
            yield self._supervision

    async def keep(self) -> None:
        """Keeps the processes until they are to end: it was told to, or one crashed too often (`failed`)."""
        assert self._supervision is not None
        try:
            await self._supervision.run(self._shutdown.stop)
            self.state, self.why = "draining", self.why or "told to end"
        except CrashLoop as error:
            self.failed = error
            self.state, self.why = "failed", str(error)
        self.tell()

    async def speak(self) -> None:
        """Says how it stands until it is cancelled, and learns what is asked."""
        await self._membership.run()

    async def until_end(self) -> None:
        """Begins the drain a grace before the end that it was given."""
        if self._ends_at_s is not None:
            await until_clock(self._ends_at_s - self._settings.grace_s)
            self.end("its end is near")

    def end(self, why: str) -> None:
        """It is to end; the first reason stands."""
        self.why = self.why or why
        self._shutdown.stop.set()

    def come_up(self) -> bool:
        """All that was started is there; False when that is known, or the end has begun."""
        if self.state != "starting":
            return False
        self.state = "up"
        self.tell()
        return True

    def tell(self) -> None:
        """Something changed: it is said soon."""
        self._membership.tell()

    async def leave(self, killed: Sequence[str]) -> int:
        """Gives up the name, after the last process; returns the exit code.

        Args:
            killed: names of the processes that did not end in time.
        """
        self.state = "failed" if self.failed is not None or killed else "ended"
        if killed:
            self.why = f"{self.why}; killed: {', '.join(killed)}"
        self._files.remove_note()
        await self._membership.beat(leaving=True)
        if self.state == "failed":
            return EXIT_FAILED
        return EXIT_TAKEN if self.has_lost_name else EXIT_OK

    def _asked(self, asked: Asked) -> None:
        if asked.drain and not self._shutdown.stop.is_set():
            self.end("drained by `rollstream node drain`")
        self._on_asked(asked)

    def _lost(self, host: str) -> None:
        if not self.has_lost_name:
            log.error("name_lost", node=self.name, to=host, what="another launcher has this node's name; leaving")
        self.has_lost_name = True
        self.end(f"a launcher on {host} has the name")
        self._shutdown.hurry.set()

    def _changed(self) -> None:
        running = {each.plan.name: each.pid for each in self.processes if each.runs}
        try:
            self._files.write(running, logs=self.logs, grace_s=self._settings.grace_s)
        except OSError as error:
            log.warning(
                "note_not_written", error=str(error), what="after a kill -9 of this launcher its successor ends less of what is left"
            )
        self._on_change()
        self.tell()

    def _all_fields(self) -> Mapping[str, Arg]:
        own = launcher_fields(
            self.state, self.why, ends_at_s=self._ends_at_s, grace_s=self._settings.grace_s, supervision=self._supervision
        )
        return {**own, "failed": "" if self.failed is None else self.failed.crash.name, **self._fields()}


def tell_crash(what: str, failed: CrashLoop) -> None:
    """Says on standard error which process ended it, with its last lines.

    Args:
        what: that has ended, in words.
    """
    print(f"rollstream: {what} ended: {failed}. Its last lines:\n{failed.crash.tail}", file=sys.stderr)
