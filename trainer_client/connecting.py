"""Connecting to a run: a new incarnation is taken, and found out where it begins.

Protocol. A trainer that connects makes a new incarnation of its run, which fences the one before: every change that the older one asks for
is refused from then on, and it hears so at its next sign of life at the latest. Where the run stands comes from the state that the trainer
resumes from, else from the one that stands in Redis since the last ack, else the run begins.

Going back. A state whose token is not the one in Redis is of another point in the history: the trainer goes back (`Progress.base` is this
incarnation). The ledger forgets the later steps when the first one is opened again; only then are prompts fed, and those that the lost
history was done with are pushed again.

Standing ahead. A state of the same history that is later than what stands in Redis is of a time that Redis has lost (a failover, a crash, a
backup that was laid back): the trainer does not go back, the ledger is put where the state is (`history.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import orjson

from pipeline.keys import Keys, shard_of
from pipeline.layout import check_layout
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.requests import bounded_int, bounded_number, bounded_seconds, run_id
from pipeline.scripts.calls import Scripts, new_nonce
from pipeline.settings import QueueSettings
from trainer_client.client import Run
from trainer_client.contact import PATIENCE_S, Contact
from trainer_client.embedded_server import with_server
from trainer_client.first_contact import first_contact
from trainer_client.history import catch_up
from trainer_client.logs import Log
from trainer_client.progress import Progress

log = Log(__name__)


class Connection:
    """What `connect` returns: enter it to hold the run, leave it to let go. Leaving stops everything and loses nothing."""

    def __init__(
        self,
        settings: QueueSettings,
        run: str,
        resume: Mapping[str, object] | None,
        *,
        weight: float | None,
        quota: int | None,
        patience_s: float,
    ) -> None:
        self._settings = settings
        self._run = run
        self._resume = resume
        self._weight = weight
        self._quota = quota
        self._patience_s = patience_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Run:
        async with AsyncExitStack() as stack:
            settings = await with_server(self._settings, stack)
            client = command_client(settings)
            stack.push_async_callback(client.aclose)
            run = await self._take(settings, client)
            await run.start()
            stack.push_async_callback(run.close)
            self._stack = stack.pop_all()
            return run

    if not TYPE_CHECKING:  # a checker says it better

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"connect() has no {name!r}: enter it first, `async with connect(...) as run:`, and use `run`")

        def __await__(self) -> object:
            raise TypeError("connect() is entered, not awaited: `async with connect(...) as run:`")

        def __enter__(self) -> object:
            raise TypeError(
                "connect() wants `async with connect(...) as run:`; without an event loop: `with connect_blocking(...) as run:`"
            )

        def __exit__(self, *_: object) -> None: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def _take(self, settings: QueueSettings, client: AsyncClient) -> Run:
        """Takes the run, and finds out where it stands."""
        asked = None if self._resume is None else Progress.from_state(self._resume, self._run)
        keys = Keys.of_shard(settings.namespace, shard_of(self._run, settings.shards))
        contact = Contact(self._run, patience_s=self._patience_s)
        await first_contact(contact, lambda: check_layout(client, settings), settings)
        scripts, nonce = Scripts(client, keys), new_nonce()
        incarnation = await contact.reach(
            lambda: scripts.connect_run(
                self._run,
                nonce=nonce,
                ttl_s=settings.run_keys_ttl_s,
                gone_s=settings.run_ttl_s,
                weight=self._weight,
                quota=self._quota,
            )
        )
        saved, was, first = await contact.reach(lambda: ask(client, "HMGET", keys.run(self._run), "trainer", "ver.was", "first"))
        stands = Progress.from_state(orjson.loads(saved), self._run) if saved else None
        progress, went_back = _where(asked, stands, self._run, incarnation, newest=int(was) if was else None)
        behind = _lost_from(progress, stands, int(first) if first else None)
        if not went_back and behind is not None:
            await contact.reach(lambda: catch_up(progress, incarnation, behind, client, keys))
        run = Run(settings, self._run, incarnation, progress, nonce=nonce, went_back=went_back, client=client, patience_s=self._patience_s)
        await run.save_state()
        log.info("run_connected", run=self._run, incarnation=incarnation, next_step=progress.next_step, went_back=went_back)
        return run


def _where(asked: Progress | None, stands: Progress | None, run: str, incarnation: int, *, newest: int | None) -> tuple[Progress, bool]:
    """Where a trainer begins, and whether it goes back.

    Args:
        newest: number of the version that a trainer of the run set last.
    """
    if asked is None:
        return stands or Progress(run=run), False
    if stands is None:
        # a new server: no history but the checkpoint's, and incarnations that begin at 1 again
        asked.base = 0
        return asked, False
    has_newest = asked.version is None or newest is None or newest <= asked.version
    if (asked.token == stands.token or _is_ahead(asked, stands)) and has_newest:
        # the trainer may have gone back to this very point since the checkpoint was written
        asked.base = stands.base
        return asked, False
    asked.base = incarnation
    return asked, True


def _is_ahead(asked: Progress, stands: Progress) -> bool:
    """Whether a state is later than the other, in the same history."""
    return asked.base == stands.base and (asked.next_step or 0) > (stands.next_step or 0)


def _lost_from(progress: Progress, stands: Progress | None, first_open: int | None) -> int | None:
    """The first step that the trainer has had and Redis has lost; None = it has lost none.

    Args:
        first_open: the first step that is open in Redis.
    """
    if progress.next_step is None:
        return None
    if stands is not None and stands is not progress and _is_ahead(progress, stands):
        return stands.next_step or 0
    return first_open if first_open is not None and first_open < progress.next_step else None


def connect(
    redis: str | QueueSettings | None = None,
    *,
    run: str,
    resume: Mapping[str, object] | None = None,
    weight: float | None = None,
    quota: int | None = None,
    patience_s: float = PATIENCE_S,
) -> Connection:
    """Connects to a run as its trainer: `async with connect(url, run="swe-7b") as run: ...`. A trainer that held it before is fenced off.

    Args:
        redis: URL of Redis, or all settings; None = as the environment says, else the embedded server of this machine.
        run: id of the run.
        resume: what `Run.state_dict` returned, from the trainer's checkpoint; None = go on after the last step that was acked.
        weight: share of the run among others, while workers are scarce; None = as it stands, 1 in a new run.
        quota: most jobs in flight, 0 = no bound; None = as it stands, no bound in a new run.
        patience_s: how long a call waits for Redis before it fails.

    Raises:
        InvalidRequest: an argument does not fit.
    """
    if weight is not None:
        weight = bounded_number(weight, "weight", low=0.001, high=1000)
    if quota is not None:
        bounded_int(quota, "quota", low=0, high=10_000_000)
    settings = redis if isinstance(redis, QueueSettings) else QueueSettings.load(redis_url=redis)
    bounded_seconds(patience_s, "patience_s")
    return Connection(settings, run_id(run), resume, weight=weight, quota=quota, patience_s=patience_s)


__all__ = ["PATIENCE_S", "Connection", "connect"]
