"""A node's name in Redis, what its launcher says there, and what people ask of it.

Invariants (docs/adr/0027-node.md): a second launcher is refused while the first speaks; one that lost the name ends; an outage of Redis
ends nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping

import structlog

from ops.node.files import NodeTaken
from ops.node.supervision import Supervision
from pipeline.errors import BrokerError
from pipeline.logs import redact_text
from pipeline.process import StoppedWhileWaiting, software_version, until_reached
from pipeline.scripts.node_calls import Asked, NameTaken, NodeScripts
from pipeline.scripts.runner import Arg
from pipeline.usable_cores import usable_cores

log = structlog.get_logger(__name__)

BEAT_S = 2.0
LAPSE_MARGIN_S = 0.1
GATHER_S = 0.1
"""What changes within this time is said at once."""
MOST_TAIL_CHARS = 4000


class Membership:
    """The name of one node.

    Args:
        boot: of this launcher.
        lease_s: a launcher that says nothing for so long has lost the name.
        fields: all that is said of the node, asked for at each beat.
        on_asked: told what people asked, whenever that is something else.
        on_lost: told the host that has the name now.
    """

    def __init__(
        self,
        scripts: NodeScripts,
        node: str,
        boot: str,
        *,
        lease_s: float,
        fields: Callable[[], Mapping[str, Arg]],
        on_asked: Callable[[Asked], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._scripts, self._node, self._boot = scripts, node, boot
        self._lease_s, self._beat_s = lease_s, min(BEAT_S, lease_s / 4)
        self._fields, self._on_asked, self._on_lost = fields, on_asked, on_lost
        self._asked = Asked()
        self._news = asyncio.Event()
        self._is_away = False

    def tell(self) -> None:
        """Something changed: it is said soon."""
        self._news.set()

    async def take(self, dead_boot: str, stop: asyncio.Event) -> None:
        """Takes the name. One that says no more is waited for until it lapses.

        Args:
            dead_boot: that is known to be dead.

        Raises:
            NodeTaken: another launcher has it, and speaks.
            StoppedWhileWaiting: `stop` was set.
        """
        first: NameTaken | None = None
        while True:
            taken = await until_reached(
                lambda: self._scripts.take_node(self._node, self._boot, lease_ms=self._lease_ms, dead=dead_boot), stop
            )
            if taken is None:
                return
            if first is not None and taken.beat_ms != first.beat_ms:
                raise NodeTaken(
                    f"node {self._node} has a launcher, process {taken.pid} on {taken.host}: "
                    f"`rollstream node show {self._node}` looks at it, --node takes another"
                )
            if first is None:
                log.warning("name_is_taken", node=self._node, by=f"process {taken.pid} on {taken.host}", lapses_s=round(taken.lapses_s, 1))
            first = taken
            await _pause(min(self._beat_s, taken.lapses_s + LAPSE_MARGIN_S), stop)

    async def run(self) -> None:
        """Speaks until it is cancelled."""
        while True:
            self._news.clear()
            await self.beat()
            try:
                async with asyncio.timeout(self._beat_s):
                    await self._news.wait()
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                continue

    async def beat(self, *, leaving: bool = False) -> None:
        """Says once how the node stands. Without Redis that is left out."""
        try:
            reply = await self._scripts.publish_node(self._node, self._boot, self._fields(), lease_ms=self._lease_ms, leaving=leaving)
        except BrokerError as error:
            if not self._is_away:
                log.warning("node_not_published", error=str(error), what="the node goes on; it is said when Redis answers")
            self._is_away = True
            return
        self._is_away = False
        if isinstance(reply, str):
            self._on_lost(reply)
        elif reply != self._asked:
            self._asked = reply
            self._on_asked(reply)

    @property
    def _lease_ms(self) -> int:
        return int(self._lease_s * 1000)


def launcher_fields(state: str, why: str, *, ends_at_s: float | None, grace_s: float, supervision: Supervision | None) -> dict[str, Arg]:
    """What every launcher says of itself: docs/reference/keys.md has the fields.

    Args:
        supervision: None before it keeps processes.
    """
    fields: dict[str, Arg] = {
        "state": state,
        "why": redact_text(why),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "uid": os.getuid(),
        "version": software_version(),
        "cores": usable_cores(),
        "clock": int(time.time() * 1000),
        "slurm": os.environ.get("SLURM_JOB_ID", ""),
        "until": "" if ends_at_s is None else int(ends_at_s * 1000),
        "grace": f"{grace_s:g}",
    }
    if supervision is not None:
        fields["procs"] = " ".join(f"{each.plan.name}:{each.pid}:{each.state}" for each in supervision.processes)
        fields["crashes"] = supervision.crash_count
        if (crash := supervision.last_crash) is not None:
            fields["crash.name"], fields["crash.code"] = crash.name, crash.code
            fields["crash.at"], fields["crash.tail"] = int(crash.at_s * 1000), crash.tail[-MOST_TAIL_CHARS:]
    return fields


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
    raise StoppedWhileWaiting
