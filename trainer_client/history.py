"""What Redis lost of a run's history, and how the ledger gets to where the trainer stands.

A server that keeps its writes for a second, or a replica that takes over, forgets the last of them: Redis stands at an earlier point, with
all that was before it (docs/adr/0029-redis-beyond-one-box.md). The trainer has gone on from there. It knows which steps it was given and
what was in them, and that is what counts: a step that it has had is never sampled again, nor are its prompts.

Invariants:
  1. Nothing is guessed from which server answers: the history itself is compared. A step stands when the ledger says that it was reached
     by the very record that was given out. When one stands, all before it do.
  2. The ledger is restored before anything else is sent again. What was asked for afterwards is asked for again then.
  3. A group that the trainer has not had is in one step that is still to come.
  4. What cannot be restored ends the client: more steps were lost than it remembers, or another trainer has its number, since Redis lost
     that the number was taken.
"""

from __future__ import annotations

from typing import NoReturn

from pipeline.errors import RunLost
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.trainer_calls import HadGroup, TrainerScripts
from trainer_client.calls import Calls
from trainer_client.dataset import settled
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.logs import Log
from trainer_client.progress import Progress

log = Log(__name__)


class History:
    """Compares and restores, for one client."""

    def __init__(
        self,
        run: str,
        incarnation: int,
        nonce: str,
        *,
        client: AsyncClient,
        keys: Keys,
        scripts: TrainerScripts,
        inbox: Inbox,
        calls: Calls,
        life: Lifetime,
    ) -> None:
        self._run = run
        self._incarnation = incarnation
        self._nonce = nonce
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._inbox = inbox
        self._calls = calls
        self._life = life

    async def restore(self) -> None:
        """Looks whether the steps stand that the trainer has had, and puts the ledger right when one does not.

        Raises:
            RunLost: Redis does not know this trainer, or all the steps that it remembers were lost, and there were more.
        """
        readings, lost = self._inbox.readings, []
        (nonce,) = await self._calls.make(ask, self._client, "HMGET", self._keys.run(self._run), "nonce")
        if nonce is not None and nonce.decode() != self._nonce:
            self._end(f"this trainer: another one has its incarnation {self._incarnation}")
        for index, step in reversed(self._inbox.handed.steps.items()):
            (entry,) = await self._calls.make(ask, self._client, "HMGET", self._keys.step(self._run, index), "rid")
            if entry is not None and entry.decode() == step.entry:
                break
            lost.append(step)
        if not lost:
            self._inbox.end_doubts()
            self._inbox.trust(readings)
            return
        if len(lost) == len(self._inbox.handed.steps) and self._inbox.handed.has_forgotten:
            self._end(f"the last {len(lost)} steps that this trainer has had, and it does not remember those before")
        groups = [group for step in reversed(lost) for group in step.groups]
        steps, taken_back = await self._calls.make(
            self._scripts.restore_steps, self._run, self._incarnation, lost[-1].index, lost[0].index, groups
        )
        self._inbox.take_back(steps, taken_back)
        self._inbox.trust(readings)
        log.warning(
            "steps_were_lost",
            run=self._run,
            steps=[step.index for step in reversed(lost)],
            groups_for_later_steps=len(taken_back),
            meaning="Redis lost its last writes; the trainer has had these steps, and goes on behind them",
        )

    def _end(self, what: str) -> NoReturn:
        error = RunLost(self._run, what)
        self._life.end(error)
        raise error


async def catch_up(progress: Progress, incarnation: int, first: int, client: AsyncClient, keys: Keys) -> None:
    """Puts the ledger where the state of a trainer is that connects, which is ahead of it.

    A prompt that waits or flies in Redis, and that was settled in the state, is one of the time that Redis has lost.

    Args:
        first: the first step that was lost.

    Raises:
        BrokerUnreachable, StaleIncarnation
    """
    run, last = progress.run, (progress.next_step or 0) - 1
    groups = await _had_by(progress, client, keys, first)
    await TrainerScripts(client, keys).restore_steps(run, incarnation, first, last, groups)
    log.warning("redis_was_behind", run=run, first_step=first, last_step=last, meaning="it lost its last writes; the checkpoint has them")


async def _had_by(progress: Progress, client: AsyncClient, keys: Keys, first: int) -> list[HadGroup]:
    """Prompts in Redis that were settled in the state, under whatever draw."""
    if progress.feed is None:
        return []
    run, is_settled = progress.run, settled(progress.feed)
    prompts = {prompt.decode() for prompt in await ask(client, "ZRANGE", keys.reserve(run), 0, -1)}
    groups = {group for key in (keys.flying(run), keys.parked(run)) for group in await ask(client, "ZRANGE", key, 0, -1)}
    for index in await ask(client, "ZRANGEBYSCORE", keys.steps(run), first, "+inf"):
        groups.update(await ask(client, "HKEYS", keys.step_groups(run, index.decode())))
    prompts |= {group.decode().removeprefix(f"{run}.").rpartition(".")[0] for group in groups}
    return [HadGroup("", prompt, 0, "trained") for prompt in sorted(prompts) if is_settled(prompt)]
