"""Sandboxes that are ready before anybody asks: walls up, shell open, never used.

    filling ──> ready ── taken off the shelf, pinged and given to its owner on disk ──> the caller's, and never back here
                  └── too old, dead, forgotten, no room on the node ──> ended

1. One that is ready is handed out at most once: it is taken off the shelf in one step, before anything is awaited.
2. Until it is handed out it belongs to the pool, on disk too. The owner is written before the caller sees it; a crash in between leaves a
   sandbox of nobody, which the next service ends.
3. It is handed out for the very spec it was made for, and only while the image's name still means what it meant.
4. Filling stands behind everybody who waits (`StartGates`, spare), and stops while memory or disk run short. It begins a little after a
   hand-out: what is filled at once would take the core that the first command of who was just handed one runs on.
5. It is off unless it is asked for: a start takes tens of milliseconds of a job's minutes, and what is kept ready costs memory.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import structlog

from workers.sandbox.errors import NodeUnavailable, SandboxError, SandboxGone
from workers.sandbox.local.attempts import POOL_JOB
from workers.sandbox.local.provider import MIN_FREE_BYTES
from workers.sandbox.local.sandbox import LocalSandbox
from workers.sandbox.spec import SandboxOwner, SandboxSpec

log = structlog.get_logger(__name__)

SPECS = 4
"""So many specs are kept ready for, those seen last: a node works on a few runs at a time."""
PING_S = 1.0
"""A ping takes a millisecond; one that takes this long is not what a warm pool is for."""
FIRST_ANSWER_S = 30.0
LOOK_S = 10.0
"""Between looks at ages and room, when nothing else happens."""
FILL_AFTER_S = 0.05
"""After a hand-out: the first commands of who got it are answered by then."""
AGAIN_S = 60.0
"""After a fill that failed: those who ask will see for themselves what is wrong."""
FREE_MEMORY = 0.10
"""Share of the node's memory that must be available."""
FREE_DISK_BYTES = 4 * MIN_FREE_BYTES


Key = tuple[Hashable, ...]
"""What a spec asks for."""


class Source(Protocol):
    """Where its sandboxes come from, and how they change hands."""

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox: ...

    async def hand_over(self, sandbox: LocalSandbox, owner: SandboxOwner) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """One that nobody has used."""

    sandbox: LocalSandbox
    made_s: float
    gone: asyncio.Future[str]


class WarmPool:
    """What is kept ready on one node.

    Args:
        per_spec: ready ones of each spec; 0 = none, ever.
        ttl_s: longest that one is kept.
        has_room: whether the node can spare memory and disk now. Called in a thread.
        ping_s: longest that one may take to answer as it is handed out.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        source: Source,
        *,
        per_spec: int,
        ttl_s: float,
        has_room: Callable[[], bool],
        ping_s: float = PING_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._per_spec = per_spec
        self._ttl_s = ttl_s
        self._has_room = has_room
        self._ping_s = ping_s
        self._clock = clock
        self._specs: OrderedDict[Key, SandboxSpec] = OrderedDict()
        self._shelf: dict[Key, deque[Ready]] = {}
        self._failed_s: dict[Key, float] = {}
        self._changed = asyncio.Event()
        self._closed = False
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> int:
        """How many stand ready."""
        return sum(map(len, self._shelf.values()))

    def on_shelf(self, spec: SandboxSpec) -> tuple[Ready, ...]:
        """Those of one spec, the next to be handed out first."""
        return tuple(self._shelf.get(key_of(spec), ()))

    async def take(self, spec: SandboxSpec, owner: SandboxOwner) -> LocalSandbox | None:
        """One that is ready, alive, and belongs to `owner` by now; None when there is none. The spec is remembered.

        Raises:
            StaleAttempt, SandboxLeak: as from a start.
        """
        if not self._per_spec or self._closed:
            return None
        key = key_of(spec)
        self._specs[key] = spec
        self._specs.move_to_end(key)
        while len(self._specs) > SPECS:
            self._specs.popitem(last=False)
        try:
            return await self._hand_out(key, owner)
        finally:
            asyncio.get_running_loop().call_later(FILL_AFTER_S, self._changed.set)

    async def run(self) -> None:
        """Keeps it filled until it is cancelled."""
        while True:
            self._changed.clear()
            await self.tidy()
            key = next(self._wanting(), None)
            if key is not None and await asyncio.to_thread(self._has_room):
                await self._fill(key)
                continue
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def empty(self) -> None:
        """Ends all that are ready; nothing is handed out or filled afterwards."""
        self._closed = True
        self._changed.set()
        for shelf in self._shelf.values():
            while shelf:
                self._end(shelf.popleft())
        await asyncio.gather(*self._ending)

    async def tidy(self) -> None:
        """Ends what is too old, has died, or is ready for what nobody asks for any more; all, when the node needs the room."""
        room = not self.ready or await asyncio.to_thread(self._has_room)
        for key, shelf in list(self._shelf.items()):
            kept = deque(each for each in shelf if room and key in self._specs and not self._is_old(each) and not each.gone.done())
            self._shelf[key] = kept  # no step of it waits: `take` sees the shelf before or after
            for each in shelf:
                if each not in kept:
                    self._end(each)
            if not kept:
                del self._shelf[key]

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    def _wanting(self) -> Iterator[Key]:
        """Specs of which one more is wanted, the latest first."""
        if self._closed:
            return
        for key in reversed(self._specs):
            failed_s = self._failed_s.get(key)
            if failed_s is not None and self._clock() - failed_s < AGAIN_S:
                continue
            if len(self._shelf.get(key, ())) < self._per_spec:
                yield key

    async def _hand_out(self, key: Key, owner: SandboxOwner) -> LocalSandbox | None:
        while shelf := self._shelf.get(key):
            found = shelf.popleft()
            try:
                if not self._is_old(found) and await self._passes_on(found, owner):
                    return found.sandbox
            except SandboxGone as error:
                log.info("warm_sandbox_not_taken", why=str(error))
            except BaseException:
                self._end(found)
                raise
            self._end(found)
        return None

    async def _passes_on(self, found: Ready, owner: SandboxOwner) -> bool:
        """Gives it to its owner while it is asked whether it is alive; False when it is not: it ends as what the owner has here."""
        giving = asyncio.get_running_loop().create_task(self._source.hand_over(found.sandbox, owner), name="give a warm sandbox")
        try:
            alive = await self._answers(found, self._ping_s)
            await giving
        except BaseException:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)
            raise
        return alive

    async def _fill(self, key: Key) -> None:
        try:
            sandbox = await self._source.start(self._specs[key], SandboxOwner(job_id=POOL_JOB, attempt=1, boot_id=POOL_JOB))
        except NodeUnavailable:
            self._failed_s[key] = self._clock()
            return
        except SandboxError as error:
            log.warning("warm_sandbox_not_made", error=str(error))
            self._failed_s[key] = self._clock()
            return
        made = Ready(sandbox, self._clock(), asyncio.ensure_future(sandbox.wait_gone()))
        made.gone.add_done_callback(lambda _: self._changed.set())
        try:
            alive = await self._answers(made, FIRST_ANSWER_S)
        except BaseException:
            self._end(made)
            raise
        if not alive or self._closed:
            self._end(made)
            self._failed_s[key] = self._clock()
        else:
            self._failed_s.pop(key, None)
            self._shelf.setdefault(key, deque()).append(made)

    async def _answers(self, found: Ready, limit_s: float) -> bool:
        """Whether its shell runs a command: so holder, walls and PID 1 do."""
        try:
            async with asyncio.timeout(limit_s):
                return (await found.sandbox.shell().run(":", timeout_s=limit_s)).status == "ok"
        except (SandboxError, TimeoutError) as error:
            log.warning("warm_sandbox_dead", error=str(error))
            return False

    def _is_old(self, found: Ready) -> bool:
        return self._clock() - found.made_s > self._ttl_s

    def _end(self, found: Ready) -> None:
        ending = asyncio.get_running_loop().create_task(_kill(found.sandbox), name="end a warm sandbox")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def key_of(spec: SandboxSpec) -> Key:
    """The same for specs that ask for the same, whatever the order of their variables."""
    wishes = (getattr(spec, name) for name in SandboxSpec.__slots__)
    return tuple(frozenset(wish.items()) if isinstance(wish, Mapping) else wish for wish in wishes)


def has_room(scratch: Path) -> bool:
    """Whether memory and disk are left for what nobody needs yet. Blocks."""
    memory = psutil.virtual_memory()
    return bool(memory.available > FREE_MEMORY * memory.total and shutil.disk_usage(scratch).free > FREE_DISK_BYTES)


async def _kill(sandbox: LocalSandbox) -> None:
    try:
        await sandbox.kill()
    except SandboxError as error:  # its folder stays, and the janitor finds it
        log.error("warm_sandbox_not_removed", sandbox=sandbox.handle.sandbox_id, error=str(error))
