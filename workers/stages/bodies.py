"""Reads the bodies that a stage needs, many at a time.

Jobs that begin together ask together: what was asked for in one turn of the event loop goes out as one MGET. Templates are shared by the
jobs of a feed and kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import redis

from pipeline import codec
from pipeline.errors import BrokerError, DamagedBody
from pipeline.keys import Keys
from pipeline.messages import JobSpec, JobTemplate, Prompt
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Begun, Scripts

KEPT_TEMPLATES = 256
BATCH = 64


class Bodies:
    """The bodies of one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self._client = client
        self.keys = keys
        self._templates: OrderedDict[str, JobTemplate] = OrderedDict()
        self._asked: list[tuple[str, asyncio.Future[bytes | None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def get(self, key: str) -> bytes:
        """One body.

        Raises:
            DamagedBody: there is none under that key.
            BrokerUnreachable
        """
        body = await self.find(key)
        if body is None:
            raise DamagedBody(f"{key} is not there", b"")
        return body

    async def journal(self, key: str) -> list[bytes]:
        """The bodies of a journal, in order; empty when there is none."""
        return [*await ask(self._client, "LRANGE", key, 0, -1)]

    async def keep(self, job: str, attempt: int, kind: str, body: bytes, *, ttl_ms: int) -> None:
        """Keeps a body that can be made again from what is there, as long as its job; the first one stays."""
        await Scripts(self._client, self.keys).keep_body(job, attempt, kind, body, ttl_ms=ttl_ms)

    async def last_error(self, job: str) -> str:
        """Why an earlier attempt of a job was given up; empty when none was, or when Redis does not say."""
        try:
            reason = await ask(self._client, "HGET", self.keys.job(job), "err")
        except (BrokerError, redis.RedisError):
            return ""
        return reason.decode("utf-8", "replace") if reason else ""

    async def find(self, key: str) -> bytes | None:
        """One body, or None."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()
        self._asked.append((key, future))
        if len(self._asked) == 1:
            loop.call_soon(self._send)
        return await future

    async def spec(self, begun: Begun) -> JobSpec:
        """What a begun job is to do.

        Raises:
            DamagedBody, NewerMessage, BrokerUnreachable
        """
        claim = begun.claim
        key = self.keys.template(claim.run, begun.template)
        template = self._templates.get(key)
        prompt_key = self.keys.prompt(claim.group or claim.job)
        if template is None:
            raw_template, raw_prompt = await asyncio.gather(self.get(key), self.get(prompt_key))
            template = codec.decode(JobTemplate, raw_template)
            self._templates[key] = template
            while len(self._templates) > KEPT_TEMPLATES:
                self._templates.popitem(last=False)
        else:
            raw_prompt = await self.get(prompt_key)
        return JobSpec(
            job=claim.job,
            run=claim.run,
            group=claim.group,
            member=claim.member,
            draw=begun.draw,
            attempt=begun.attempt,
            template=template,
            prompt=codec.decode(Prompt, raw_prompt),
        )

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        for at in range(0, len(asked), BATCH):
            task = asyncio.get_running_loop().create_task(self._fetch(asked[at : at + BATCH]), name="bodies")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _fetch(self, asked: list[tuple[str, asyncio.Future[bytes | None]]]) -> None:
        try:
            found = await ask(self._client, "MGET", *(key for key, _ in asked))
        except (BrokerError, redis.RedisError) as error:
            # whatever it is: who asked waits for an answer
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), body in zip(asked, found, strict=True):
            if not future.done():
                future.set_result(body)
