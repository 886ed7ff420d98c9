"""The queue of housekeeping: work on images that another machine, or a later hour, shall do. RQ carries it; rollouts never pass here.

1. Arguments and results are JSON: nothing that is read from Redis is unpickled. A worker runs no function but those of `JOBS`.
2. Every key begins with the namespace and `:hk`, apart from the queue of rollouts and from other users of RQ on the same server.
3. What a job did is in its result, failures of single images included; a job fails only when it could do nothing.

RQ takes its prefix from the environment when it is first imported, so it is imported here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field
from redis import Redis

from pipeline.settings import ENVIRONMENT_PREFIX, QueueSettings, TableSettings

if TYPE_CHECKING:
    from rq import Queue
    from rq.job import Job

QUEUE = "images"
JOBS: Mapping[str, str] = {"pull": "ops.images.jobs.pull", "build": "ops.images.jobs.build", "prune": "ops.images.jobs.prune"}
"""What may be asked for, and the function that does it."""
JOB_TIMEOUT_S = 24 * 3600
RESULT_TTL_S = 7 * 24 * 3600
FAILURE_TTL_S = 30 * 24 * 3600


class HousekeepingSettings(TableSettings):
    """Where the housekeeping queue is."""

    table = "housekeeping"
    variables = f"{ENVIRONMENT_PREFIX}HOUSEKEEPING_"

    redis_url: str = ""
    """A standalone Redis, by address; empty = the queue's own."""
    queue: str = Field(default=QUEUE, pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    """Which of several queues; a worker works one."""


class HousekeepingQueue:
    """One connection to the queue; a context manager.

    Args:
        queue: whose server and namespace are used; its password opens the housekeeping server too.
    """

    def __init__(self, settings: HousekeepingSettings, queue: QueueSettings) -> None:
        password = queue.password
        self.name = settings.queue
        self.prefix = f"{queue.namespace}:hk"
        self._client = Redis.from_url(
            settings.redis_url or queue.redis_url,
            username=queue.redis_user or None,
            password=password.get_secret_value() if password is not None else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def enqueue(self, what: str, **arguments: Any) -> str:
        """Asks for one of `JOBS`; arguments are those of its function, as JSON knows them. Answers the id of the job."""
        job = self._queue().enqueue_call(
            JOBS[what],
            kwargs=arguments,
            timeout=JOB_TIMEOUT_S,
            result_ttl=RESULT_TTL_S,
            failure_ttl=FAILURE_TTL_S,
            description=f"image {what}",
        )
        return str(job.id)

    def work(self, *, burst: bool) -> None:
        """Does what is asked for, a job after another, each in a process of its own; until SIGTERM, or with `burst` until none is left."""
        queue = self._queue()
        from rq.serializers import JSONSerializer
        from rq.worker import Worker

        class OurWorker(Worker):
            def execute_job(self, job: Job, queue: Queue) -> None:
                """A name that is not ours is never imported: who can write to the server could run anything."""
                if job.func_name not in JOBS.values():
                    job.func_name = "ops.images.jobs.refuse"
                super().execute_job(job, queue)

        worker = OurWorker([queue], connection=self._client, serializer=JSONSerializer)
        worker.work(burst=burst, with_scheduler=False, logging_level="WARNING")

    def result(self, job_id: str) -> tuple[str, Any]:
        """State of a job (`queued`, `started`, `finished`, `failed`, ...), and what it answered or why it failed."""
        self._queue()
        from rq.job import Job
        from rq.serializers import JSONSerializer

        job = Job.fetch(job_id, connection=self._client, serializer=JSONSerializer)
        latest = job.latest_result()
        return str(
            job.get_status().value
        ), None if latest is None else latest.return_value if latest.exc_string is None else latest.exc_string

    def _queue(self) -> Queue:
        os.environ["RQ_KEY_PREFIX"] = self.prefix
        from rq import Queue
        from rq.defaults import RQ_KEY_PREFIX
        from rq.serializers import JSONSerializer

        if self.prefix != RQ_KEY_PREFIX:
            raise RuntimeError(
                f"RQ was imported with the prefix {RQ_KEY_PREFIX!r} before; one process works one namespace, {self.prefix!r}"
            )
        return Queue(self.name, connection=self._client, serializer=JSONSerializer)
