"""The pause of a run as its trainer holds it: one lease in the pool (no call begins) and in the shard (deadlines stand still).

Invariants:
  1. A trainer that blocks its event loop, as one that broadcasts weights does, keeps its pause: a thread with its own connection renews.
  2. A trainer that was fenced off, or whose lease ran out, hears so before it labels anything (`check`), and labels nothing later than
     its lease lives (`left_s`): after that a call may have begun, or another trainer may load weights.
  3. Whatever ends the trainer ends the pause within one lease. Its successor waits for that: until then the older one may load weights.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Mapping

import redis

from pipeline.errors import BrokerError, RollstreamError, StaleIncarnation
from pipeline.inference_pool.pauses import PausedServer, PauseHeld, PauseLost, PauseWhy, PoolPauses
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, thread_client
from pipeline.scripts.replies import text
from pipeline.scripts.runner import ThreadScriptRunner
from pipeline.scripts.trainer_calls import TrainerScripts
from pipeline.settings import QueueSettings
from trainer_client.calls import Calls
from trainer_client.logs import Log

log = Log(__name__)

RENEWALS_A_LEASE = 4
UNREACHABLE_PAUSE_S = 0.5
OLDER_LOOK_S = 0.5
"""The older trainer may end its pause before its lease does."""


class RunPause:
    """One pause, from `take` to `release`.

    Args:
        calls: of the client; the pause of a client that has ended is not taken.
    """

    def __init__(
        self, settings: QueueSettings, keys: Keys, client: AsyncClient, scripts: TrainerScripts, calls: Calls, run: str, incarnation: int
    ) -> None:
        self.holder = f"{incarnation}-{secrets.token_hex(4)}"
        self._settings = settings
        self._keys = keys
        self._pauses = PoolPauses(client, settings.namespace)
        self._scripts = scripts
        self._calls = calls
        self.run = run
        self.incarnation = incarnation
        self._lost: RollstreamError | None = None
        self._ends_s = 0.0
        """When the lease surely lives no longer, by the monotonic clock."""
        self._is_asked = False
        """Redis was asked for it: it may be ours though no answer came."""
        self._is_finished = False
        self._leave = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def left_s(self) -> float:
        """Seconds for which the lease surely lives."""
        return self._ends_s - time.monotonic()

    def check(self) -> None:
        """Raises what took the pause from us.

        Raises:
            PauseLost, StaleIncarnation
        """
        if self._lost is None and self.left_s <= 0:
            self._lost = PauseLost(self.run, "")
        if self._lost is not None:
            raise self._lost

    async def take(self, why: PauseWhy, mode: str, to: str = "") -> list[PausedServer]:
        """From now on no call of the run begins. Again: says what else it is for.

        Raises:
            PauseHeld: another update of this client goes on.
            PauseLost: it was ours, and is not any more.
            StaleIncarnation
        """
        if self._thread is not None:
            self.check()
        lease_s, began_s = self._settings.lease_s, 0.0

        async def take() -> list[PausedServer]:
            nonlocal began_s
            self._is_asked = True
            began_s = time.monotonic()  # of the try that is answered: Redis may have been away for longer than a lease before it
            return await self._pauses.take(self.run, self.incarnation, self.holder, why=why, mode=mode, to=to, lease_s=lease_s)

        while True:
            try:
                servers = await self._calls.make(take)
                break
            except PauseHeld as held:
                if not 0 < held.incarnation < self.incarnation:
                    self._is_asked = self._thread is not None
                    raise
                log.info("waiting_for_the_lease_of_an_older_trainer", run=self.run, left_s=round(held.left_s, 1), what=str(held))
                await asyncio.sleep(min(OLDER_LOOK_S, max(0.01, held.left_s)))
        if self._thread is None:
            self._ends_s = began_s + lease_s
            self._thread = threading.Thread(target=self._keep, name=f"pause-{self.holder}", daemon=True)
            self._thread.start()
            await self._calls.make(self._scripts.stand_still, self.run, self.incarnation, self.holder, lease_s=lease_s)
        return servers

    async def renew(self, labels: Mapping[str, str] | None = None, starts: Mapping[str, str] | None = None) -> None:
        """It is ours for a whole lease from now on; the pool learns which labels servers were given, and which start of each.

        Raises:
            PauseLost
        """
        self.check()
        began_s = time.monotonic()
        await self._calls.make(self._pauses.hold, self.run, self.holder, labels or {}, starts=starts, lease_s=self._settings.lease_s)
        self._ends_s = max(self._ends_s, began_s + self._settings.lease_s)

    async def in_flight(self, urls: list[str], *, abort: bool) -> dict[str, tuple[int, int]]:
        """See `PoolPauses.stop_calls`."""
        self.check()
        return await self._calls.make(self._pauses.stop_calls, self.run, urls, abort=abort)

    async def finish(
        self,
        done: str,
        *,
        label: str = "",
        labels: Mapping[str, str] | None = None,
        starts: Mapping[str, str] | None = None,
        stays: bool = False,
    ) -> None:
        """What it was for is done: see `PoolPauses.resume`. Deadlines go on with `release`.

        Raises:
            PauseLost
        """
        self.check()
        await self._calls.make(self._pauses.resume, self.run, self.holder, done, label=label, labels=labels, starts=starts, stays=stays)
        self._is_finished = not stays

    async def release(self) -> None:
        """Gives the lease back, as far as it is ours; an unreachable Redis lets it run out instead. Never raises for that."""
        self._leave.set()
        if not self._is_asked:
            return
        try:
            if not self._is_finished:
                await self._calls.make(self._pauses.resume, self.run, self.holder, f"{self.holder}-end")
        except RollstreamError as error:
            log.info("pause_runs_out", run=self.run, holder=self.holder, error=str(error))
        try:
            await self._calls.make(self._scripts.stand_still, self.run, self.incarnation, self.holder, lease_s=0)
        except RollstreamError as error:
            log.info("deadlines_go_on_with_the_lease", run=self.run, holder=self.holder, error=str(error))

    # ---- the thread

    def _keep(self) -> None:
        period_s = self._settings.lease_s / RENEWALS_A_LEASE
        with thread_client(self._settings) as client:
            pool = ThreadScriptRunner(client, Keys.of_pool(self._settings.namespace))
            shard = ThreadScriptRunner(client, self._keys)
            wait_s = period_s
            while not self._leave.wait(wait_s):
                try:
                    if not self._renew(pool, shard):
                        return
                    wait_s = period_s
                except (BrokerError, redis.RedisError, OSError) as error:
                    log.warning("pause_not_renewed", run=self.run, left_s=round(self.left_s, 1), error=str(error))
                    wait_s = min(period_s, UNREACHABLE_PAUSE_S)

    def _renew(self, pool: ThreadScriptRunner, shard: ThreadScriptRunner) -> bool:
        lease_ms, began_s = int(self._settings.lease_s * 1000), time.monotonic()
        reply = pool("pool_hold", self.run, self.holder, lease_ms)
        if reply[0] != b"ok":
            # also what answers the last renewal of a pause that has just been ended
            self._lost = self._lost or PauseLost(self.run, text(reply[1]))
            return False
        self._ends_s = began_s + self._settings.lease_s
        reply = shard("stand_still", self.run, self.incarnation, self.holder, lease_ms)
        if reply[0] == b"stale":
            self._lost = self._lost or StaleIncarnation(self.run, self.incarnation, text(reply[1]))
            return False
        return True
