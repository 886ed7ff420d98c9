"""Reads the bodies that a stage needs, many at a time.

Jobs that begin together ask together: what was asked for in one turn of the event loop goes out as one MGET, each key once. Templates are
shared by the jobs of a feed, prompts by the members of a group: both are kept for a while.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from pipeline import codec
from pipeline.errors import BrokerError, DamagedBody
from pipeline.keys import Keys
from pipeline.messages import JobSpec, JobTemplate, Prompt, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Begun, Scripts

KEPT_TEMPLATES = 256
KEPT_PROMPTS = 512
MOST_KEPT_PROMPT_BYTES = 65_536
"""A larger prompt is read again for each member, so that what is kept is bounded."""
BATCH = 64


@dataclass(frozen=True, slots=True)
class JobTimes:
    """How long a job was under way when its attempt began, by the clock of Redis."""

    since_accepted_ms: int
    wait_ms: int
    """Since the stage before had done its work, or since it was accepted; retries are in it."""


class Bodies:
    """The bodies of one shard."""

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self._client = client
        self.keys = keys
        self._templates: OrderedDict[str, JobTemplate] = OrderedDict()
        self._prompts: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._asked: dict[str, list[asyncio.Future[bytes | None]]] = {}
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

    async def last_error(self, job: str, stage: Stage) -> str:
        """Why the last attempt of a job was given up that was, if it was in this stage; empty also when Redis does not say."""
        try:
            reason, where = await ask(self._client, "HMGET", self.keys.job(job), "err", "err.stage")
        except (BrokerError, redis.RedisError):
            return ""
        return reason.decode("utf-8", "replace") if reason and where == stage.value.encode() else ""

    async def times(self, job: str, stage: Stage) -> JobTimes | None:
        """What went before the attempt of a job that has just begun in this stage; None also when Redis does not say."""
        before = {Stage.INIT: "", Stage.RUN: Stage.INIT.value, Stage.EVAL: Stage.RUN.value}[stage]
        names = ["t", f"at.{stage.value}", *((f"at.{before}", f"ms.{before}") if before else ())]
        try:
            accepted, began, *earlier = map(int, await ask(self._client, "HMGET", self.keys.job(job), *names))
        except (BrokerError, redis.RedisError, TypeError, ValueError):  # a field that is not there is None
            return None
        return JobTimes(max(0, began - accepted), max(0, began - (sum(earlier) or accepted)))

    async def find(self, key: str) -> bytes | None:
        """One body, or None."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()
        if not self._asked:
            loop.call_soon(self._send)
        self._asked.setdefault(key, []).append(future)
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
            raw_template, raw_prompt = await asyncio.gather(self.get(key), self._prompt(prompt_key, begun.incarnation))
            template = codec.decode(JobTemplate, raw_template)
            self._templates[key] = template
            while len(self._templates) > KEPT_TEMPLATES:
                self._templates.popitem(last=False)
        else:
            raw_prompt = await self._prompt(prompt_key, begun.incarnation)
        prompt = codec.decode(Prompt, raw_prompt)
        return JobSpec(
            job=claim.job,
            run=claim.run,
            group=claim.group,
            member=prompt.first_member + claim.member,
            draw=begun.draw,
            attempt=begun.attempt,
            template=template,
            prompt=prompt,
        )

    async def _prompt(self, key: str, incarnation: int) -> bytes:
        """Bytes are kept, not what they say: each member gets a prompt of its own, which it may change.

        A run's next incarnation may mean another prompt by the same name once the first is forgotten.
        """
        body = self._prompts.get((key, incarnation))
        if body is None:
            body = await self.get(key)
            if len(body) <= MOST_KEPT_PROMPT_BYTES:
                self._prompts[key, incarnation] = body
                while len(self._prompts) > KEPT_PROMPTS:
                    self._prompts.popitem(last=False)
        return body

    def _send(self) -> None:
        asked, self._asked = [*self._asked.items()], {}
        for at in range(0, len(asked), BATCH):
            task = asyncio.get_running_loop().create_task(self._fetch(asked[at : at + BATCH]), name="bodies")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _fetch(self, asked: Sequence[tuple[str, Sequence[asyncio.Future[bytes | None]]]]) -> None:
        try:
            found = await ask(self._client, "MGET", *(key for key, _ in asked))
        except (BrokerError, redis.RedisError) as error:
            # whatever it is: who asked waits for an answer
            for _, futures in asked:
                for future in futures:
                    if not future.done():
                        future.set_exception(error)
            return
        for (_, futures), body in zip(asked, found, strict=True):
            for future in futures:
                if not future.done():
                    future.set_result(body)
