"""The queue of housekeeping, carried by RQ; rollouts never pass here.

1. Arguments and results are JSON, and nothing that is read from Redis is unpickled, imported or sent anywhere: a worker runs no function
   but those of `FUNCTIONS`, and drops what RQ would import by its name (callbacks) or call by its address (webhooks).
2. Every key begins with the namespace and `:hk`, apart from the queue of rollouts and from other users of RQ on the same server.
3. What a job did is in its result, failures of single images included; a job fails only when it could do nothing.

RQ takes its prefix from the environment when it is first imported, so it is imported here, in `rq_classes` and in `cron`, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import redis
from redis import Redis
from redis.credentials import CredentialProvider

from ops.housekeeping.jobs import RUN
from ops.housekeeping.settings import SHARED, HousekeepingSettings
from pipeline.errors import InvalidRequest
from pipeline.redis_client import broker_error
from pipeline.settings import ADDRESSES, QueueSettings

if TYPE_CHECKING:
    from rq import Queue
    from rq.job import Job
    from rq.worker import Worker

IMAGE_JOBS: Mapping[str, str] = {"pull": "ops.images.jobs.pull", "build": "ops.images.jobs.build", "prune": "ops.images.jobs.prune"}
"""What `rollstream image --queue` asks for, and the function that does it."""
FUNCTIONS = frozenset((RUN, *IMAGE_JOBS.values()))
"""All that a worker runs."""
JOB_TIMEOUT_S = 24 * 3600
RESULT_TTL_S = 7 * 24 * 3600
FAILURE_TTL_S = 30 * 24 * 3600
RETRIES = 2
"""Of a job whose process was killed; what a job raises itself is not tried again before its next tick."""


class _FilePassword(CredentialProvider):
    """Reads the password again at each connection."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        secret = self._settings.password
        word = secret.get_secret_value() if secret else ""
        return (self._settings.redis_user, word) if self._settings.redis_user else (word,)


def server_of(settings: HousekeepingSettings, queue: QueueSettings) -> QueueSettings:
    """Address, user and password file of the housekeeping server: its own when one is set, else the queue's.

    Raises:
        InvalidRequest: that is no standalone server.
    """
    if settings.redis_url:
        own = {"redis_url": settings.redis_url, "redis_user": settings.redis_user, "redis_password_file": settings.redis_password_file}
        return queue.model_copy(update=own)
    if queue.redis_url and not queue.redis_url.startswith(ADDRESSES):
        why = "RQ works on one standalone server, and the queue of rollouts is on Sentinels or a Cluster: name another one"
        raise InvalidRequest(why, field="housekeeping.redis_url")
    return queue


def _client(server: QueueSettings) -> Redis:
    options: dict[str, Any] = {"credential_provider": _FilePassword(server)} if server.redis_password_file else {}
    if server.redis_url.startswith("rediss://"):
        files = {"ssl_ca_certs": server.redis_ca_file, "ssl_certfile": server.redis_cert_file, "ssl_keyfile": server.redis_key_file}
        options |= {name: str(file) for name, file in files.items() if file is not None}
    return Redis.from_url(server.redis_url, **options)


class HousekeepingQueue:
    """One connection to the queue; a context manager.

    Args:
        queue: whose namespace is used, and whose server, unless housekeeping has its own.
    """

    def __init__(self, settings: HousekeepingSettings, queue: QueueSettings) -> None:
        self.settings = settings
        self.prefix = f"{queue.namespace}:hk"
        self.client = _client(server_of(settings, queue))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @property
    def shared(self) -> str:
        """Queue of the jobs that any machine may do."""
        return SHARED

    @property
    def own(self) -> str:
        """Queue of the jobs of this machine."""
        return f"node-{self.settings.this_node}"

    @property
    def images(self) -> str:
        """Queue of pulls and builds."""
        return self.settings.queue

    def enqueue_image(self, what: str, **arguments: Any) -> str:
        """Asks for one of `IMAGE_JOBS`; arguments are those of its function, as JSON knows them. Answers the id of the job.

        Raises:
            BrokerError
        """
        with naming_outages():
            job = self.rq_queue(self.images).enqueue_call(
                IMAGE_JOBS[what],
                kwargs=arguments,
                timeout=JOB_TIMEOUT_S,
                result_ttl=RESULT_TTL_S,
                failure_ttl=FAILURE_TTL_S,
                description=f"image {what}",
            )
        return str(job.id)

    def enqueue_tick(self, queue: str, name: str, job_id: str, *, period_s: float) -> Job | None:
        """Asks for a housekeeping job under an id that only one caller can use; None = somebody has.

        Args:
            period_s: the job expires in the queue after this long, and its record stays longer, so that its id is never free within its
            tick.
        """
        from rq import Retry
        from rq.exceptions import DuplicateJobError

        keep_s = max(RESULT_TTL_S, int(3 * period_s))
        try:
            return self.rq_queue(queue).enqueue_call(
                RUN,
                kwargs={"name": name},
                timeout=JOB_TIMEOUT_S,
                ttl=max(1, int(period_s)),
                result_ttl=keep_s,
                failure_ttl=keep_s,
                description=f"housekeeping {name}",
                job_id=job_id,
                unique=True,
                retry=Retry(max=RETRIES),
            )
        except DuplicateJobError:
            return None

    def worker(self, queue: str) -> Worker:
        """What works one of the queues, a job after another, each in a process of its own."""
        rq_queue = self.rq_queue(queue)
        from rq.serializers import JSONSerializer

        from ops.housekeeping.rq_classes import OurJob, OurWorker

        return OurWorker([rq_queue], connection=self.client, serializer=JSONSerializer, job_class=OurJob)

    def work(self, queue: str, *, burst: bool) -> None:
        """Works a queue until SIGTERM, or with `burst` until nothing is left in it."""
        self.worker(queue).work(burst=burst, with_scheduler=False, logging_level="WARNING")

    def result(self, job_id: str) -> tuple[str, Any]:
        """State of a job (`queued`, `started`, `finished`, `failed`, ...), and what it answered or why it failed."""
        self.import_rq()
        from rq.serializers import JSONSerializer

        from ops.housekeeping.rq_classes import OurJob

        job = OurJob.fetch(job_id, connection=self.client, serializer=JSONSerializer)
        latest = job.latest_result()
        if latest is None:
            return str(job.get_status().value), None
        return str(job.get_status().value), latest.return_value if latest.exc_string is None else latest.exc_string

    def import_rq(self) -> None:
        """Imports RQ with our prefix.

        Raises:
            RuntimeError: it was imported with another one.
        """
        os.environ["RQ_KEY_PREFIX"] = self.prefix
        from rq.defaults import RQ_KEY_PREFIX

        if self.prefix != RQ_KEY_PREFIX:
            raise RuntimeError(
                f"RQ was imported with the prefix {RQ_KEY_PREFIX!r} before; one process works one namespace, {self.prefix!r}"
            )

    def rq_queue(self, name: str) -> Queue:
        """One of the queues, as RQ has it."""
        self.import_rq()
        from rq import Queue
        from rq.serializers import JSONSerializer

        from ops.housekeeping.rq_classes import OurJob

        return Queue(name, connection=self.client, serializer=JSONSerializer, job_class=OurJob)


@contextmanager
def naming_outages() -> Iterator[None]:
    """Around calls of RQ: an outage or a refusal is told as one of ours.

    Raises:
        BrokerError
    """
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise broker_error(error) from error


__all__ = ["FUNCTIONS", "IMAGE_JOBS", "HousekeepingQueue", "naming_outages", "server_of"]
