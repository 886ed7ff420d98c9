"""The first call of a client: says where it looked for Redis and what to do, since nothing of it worked before.

A client that had contact takes a refused password for an outage that passes, since it may be being changed (`redis_client.broker_error`).
One that never had any would wait out its patience for a word that is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pipeline.errors import BrokerMisused, BrokerUnreachable
from pipeline.settings import QueueSettings
from trainer_client.contact import Contact

T = TypeVar("T")
REFUSED = ("Authentication required", "invalid username-password", "NOAUTH", "WRONGPASS")


async def first_contact(contact: Contact, call: Callable[[], Awaitable[T]], settings: QueueSettings) -> T:
    """The answer of `call`, made again until it comes, as `Contact.reach` does.

    Raises:
        BrokerMisused: Redis takes neither this user nor password.
        BrokerUnreachable: nobody answers there within the patience.
    """

    async def made() -> T:
        try:
            return await call()
        except BrokerUnreachable as error:
            if any(word in str(error) for word in REFUSED):
                raise BrokerMisused(
                    f"Redis at {_shown(settings)} takes neither this user nor password ({error}): give them in its URL, "
                    "redis://USER:PASSWORD@HOST:PORT/0, or in ROLLSTREAM_REDIS_USER and ROLLSTREAM_REDIS_PASSWORD_FILE"
                ) from error
            raise

    try:
        return await contact.reach(made)
    except BrokerUnreachable as error:
        raise BrokerUnreachable(
            f"no Redis answers at {_shown(settings)} ({error}): start it, or name another, with connect(url) or ROLLSTREAM_REDIS_URL"
        ) from error


def _shown(settings: QueueSettings) -> str:
    from pipeline.logs import redact_text  # structlog with it, which takes its time

    return redact_text(settings.redis_url)
