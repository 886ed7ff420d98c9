"""The calls of a client to Redis: refused once it has ended, made again over an outage, and heard when they tell of its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from trainer_client.contact import Contact
from trainer_client.lifetime import Lifetime

P = ParamSpec("P")
T = TypeVar("T")


class Calls:
    """Makes the calls of one client. Each is a read or an idempotent script: see `contact`."""

    def __init__(self, contact: Contact, life: Lifetime) -> None:
        self._contact = contact
        self._life = life

    async def make(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """The answer of `call(*args, **options)`.

        Raises:
            ClientClosed, StaleIncarnation, BrokerMisused: the client has ended, or ends with this.
            BrokerUnreachable: no contact for as long as the client has patience.
        """
        async with self._life.watched():
            return await self._contact.reach(lambda: call(*args, **options), stop=self._life.stop)

    async def make_if_open(self, call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        """The same for what needs a run that takes work.

        Raises:
            RunClosed, or what else the run was refused for.
        """
        self._life.check(needs_open_run=True)
        return await self.make(call, *args, **options)
