"""The node's sandbox service as a process: run it, or find it and start it where nobody has.

A service that workers start is nobody's child for long: it ends when none of them is connected any more, however they ended. So any worker
of a node may be the first to come and the first to go, and who started the service makes no difference to the others.
"""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from ops.child_processes import log_tail
from pipeline.embedded.locks import is_held
from pipeline.errors import InvalidRequest, RollstreamError
from pipeline.folders import Folders, make_folder
from pipeline.process import PARENT_FD, Shutdown, StoppedWhileWaiting
from pipeline.settings import QueueSettings
from workers.sandbox.base import Probe
from workers.sandbox.choice import choose_backend
from workers.sandbox.images import ImageSettings, ImageStore
from workers.sandbox.local.backend import Backend
from workers.sandbox.service.link import Link, ServiceNotThere
from workers.sandbox.service.serving import LOCK_NAME, serve_sandboxes
from workers.sandbox.service.settings import SandboxSettings
from workers.sandbox.spec import Isolation
from workers.settings import default_node

log = structlog.get_logger(__name__)

START_S = 30.0
"""A service finds out in a second or two what works on its node, and sweeps before it listens."""
POLL_S = 0.05
AGAIN_S = 1.0
LOOK_AGAIN_S = 2.0
"""Who does without a service looks as often whether one has come."""
EXIT_ALREADY_SERVED = 4
LINGER_S = 3.0
"""A service that workers started outlives the last of them by this: workers are often started again at once."""


class ServiceNotStarted(RollstreamError):
    """No service came up; carries what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What serves here."""

    backend: Backend
    probe: Probe


async def choose(settings: SandboxSettings, config: Path | None = None) -> Chosen:
    """The backend that the settings ask for, tried.

    Raises:
        InvalidRequest: it is none, or does not work here; says what to do.
    """
    queue = QueueSettings.load(config)
    choice = await choose_backend(
        settings.backend,
        scratch_dir=settings.scratch,
        run_dir=settings.run,
        accept_untrusted=settings.accept_untrusted,
        redis_url=queue.redis_url,
        network=settings.network,
        entry=settings.entry,
    )
    if choice.backend is None:
        raise InvalidRequest(choice.why_none(), field="sandbox.backend")
    return Chosen(backend=choice.backend, probe=choice.probes[choice.backend.name])


async def run_service(settings: SandboxSettings, *, config: Path | None = None, while_used_s: float | None = None) -> int:
    """The service of this node, from start to clean end; returns its exit code."""
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    chosen = await choose(settings, config)
    has_walls = Isolation.ISOLATED in chosen.probe.isolation
    images = await asyncio.to_thread(ImageStore.here, ImageSettings.load(config)) if has_walls else None
    await serve_sandboxes(
        settings,
        chosen.backend,
        chosen.probe,
        node=settings.node or default_node(),
        stop=shutdown.stop,
        hurry=shutdown.hurry,
        images=images,
        sweep_images=images.node.sweep if images is not None else None,
        while_used_s=while_used_s,
        abandoned=starter_gone(),
    )
    return 0


def starter_gone() -> asyncio.Event:
    """Set when the worker that started this service has ended: our input is a pipe then, whose other end only that worker has."""
    gone, loop = asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            gone.set()

    if stat.S_ISFIFO(os.fstat(0).st_mode):
        loop.add_reader(0, read)
    return gone


class ServiceFinder:
    """Waits until a service answers in the run folder, and starts one where none does.

    Args:
        config: the `rollstream.toml` of this process.
        node: name of this node, for a service that is started.
        start_s: so long services are started again that were killed or left; one that is starting, here or elsewhere, is waited for.
    """

    def __init__(self, settings: SandboxSettings, config: Path | None, node: str, *, start_s: float = START_S) -> None:
        self._settings = settings
        self._config = config
        self._node = node
        self._start_s = start_s
        self._not_before_s = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._has_answered = False
        """Since the child was started: one that ends afterwards did start, however it ended."""

    async def __call__(self, stop: asyncio.Event, *, patience_s: float | None = None) -> None:
        """Returns when a service answers.

        Args:
            patience_s: where nobody may start one here, so long one is waited for; None = for ever.

        Raises:
            ServiceNotStarted: the one that was started has ended, or says nothing; none came in that time.
            StoppedWhileWaiting: `stop` was set.
        """
        began_s, said = time.monotonic(), False
        deadline_s = began_s + self._start_s
        while True:
            why = await self._answer()
            if not why:
                self._has_answered = True
                return
            if not self._settings.autostart:
                if not said:
                    log.warning("waiting_for_node_service", why=why)
                said = True
                if patience_s is not None and time.monotonic() > began_s + patience_s:
                    raise ServiceNotStarted(f"no sandbox service within {patience_s:g} s: {why}")
            elif not await asyncio.to_thread(self._see_to_child) and time.monotonic() > deadline_s:
                raise ServiceNotStarted(f"no sandbox service within {self._start_s:g} s: {why}; its log: {self._log}")
            elif time.monotonic() > deadline_s and not said:
                log.warning("waiting_for_node_service", why=f"it is starting, and slow: {why}", log=str(self._log))
                said = True
            try:
                async with asyncio.timeout(POLL_S):
                    await stop.wait()
                raise StoppedWhileWaiting
            except TimeoutError:
                continue

    async def comes(self) -> str:
        """Returns when a service answers, whoever started it; starts none. What to say of it."""
        while why := await self._answer():
            log.debug("no_node_service_yet", why=why)
            await asyncio.sleep(LOOK_AGAIN_S)
        return "a sandbox service answers"

    def close(self) -> None:
        """Lets go of a service that was started here: it ends when nobody else uses it."""
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            child.stdin.close()
            child.poll()

    async def _answer(self) -> str:
        """Why no service answers; empty when one does."""
        try:
            link = await Link.connect(self._settings.run, boot="", fleet="", lost_error=ServiceNotThere)
        except ServiceNotThere as error:
            return str(error)
        link.close()
        return ""

    def _see_to_child(self) -> bool:
        """Starts one, unless one is just starting. Another worker's may have been faster, the last one is just leaving, or somebody killed
        it: then again. Nothing is started beside a process that has the lock: on a busy node each worker's vain starts would slow it down.

        Returns:
            Whether one is starting, here or by another worker.
        """
        code = None if self._child is None else self._child.poll()
        was_killed = code is not None and code < 0
        if code not in (None, 0, EXIT_ALREADY_SERVED) and not self._has_answered and not was_killed:
            self.close()
            raise ServiceNotStarted(f"the node's sandbox service did not start (exit code {code}): {log_tail(self._log)}")
        if code == EXIT_ALREADY_SERVED:  # by one that is starting or leaving: not looked at more often than that takes
            self._not_before_s = time.monotonic() + AGAIN_S
            self.close()
        if self._child is not None and code is None:
            return True
        if time.monotonic() < self._not_before_s or is_held(self._settings.run / LOCK_NAME):
            return True
        self.close()
        self._child, self._has_answered = self._start(), False
        return code is None

    @property
    def _log(self) -> Path:
        return Folders.from_environment().state / "logs" / f"sandbox-{self._node}.log"

    def _start(self) -> subprocess.Popen[bytes]:
        make_folder(self._log.parent)
        settings = self._settings
        command = [sys.executable, "-m", "ops.cli", "sandbox", "serve", "--while-used", "--node", self._node]
        command += ["--run-dir", str(settings.run), "--scratch-dir", str(settings.scratch)]
        command += ["--config", str(self._config)] if self._config else []
        # its input is a pipe that tells it of our end, also before it has heard of us
        environment = {name: value for name, value in os.environ.items() if name != PARENT_FD}
        log.info("node_service_started", why="none answered", run_dir=str(settings.run), log=str(self._log))
        with self._log.open("ab") as out:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True)
