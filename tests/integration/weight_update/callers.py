"""Jobs that call the servers of a run all the time, as a RUN worker's do; and what weights made each of their tokens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from pipeline.inference_pool import InferencePool, PoolLooks
from pipeline.messages import Sampling
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.integration.weight_update.engines import logprobs_of
from tests.integration.weight_update.loading import weights_of
from workers.agent.limits import ActiveTime
from workers.llm.backend import GenRequest, GenResult
from workers.stages.model_servers import ModelServers
from workers.stages.pool_keeper import PoolKeeper

TURN_TOKENS = 24
CALL_TIMEOUT_S = 30.0


@dataclass
class Callers:
    """Jobs with turn after turn, each of as many calls as aborts make of it."""

    servers: ModelServers
    run: str
    results: list[tuple[GenRequest, GenResult]] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    """Finished turns a job."""
    active: dict[str, ActiveTime] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, count: int, *, turn_tokens: int = TURN_TOKENS) -> None:
        """So many more jobs, which never end by themselves."""
        for _ in range(count):
            name = f"{self.run}.e0-{len(self.tasks)}.0.0"
            self.turns[name], self.active[name] = 0, ActiveTime(3600)
            self.tasks.append(asyncio.create_task(self._act(name, turn_tokens), name=name))

    async def _act(self, job: str, turn_tokens: int) -> None:
        rng = random.Random(job)
        way = self.servers.for_job(
            self.run, "", job, 1, gate=lambda: None, progress=lambda within_s: None, waiting=self.active[job].waiting
        )
        async with way:
            while True:
                ids, left, part = [rng.randrange(500) for _ in range(20)], turn_tokens, 0
                while left > 0:
                    request = GenRequest(
                        request_id=f"{job}.1.{self.turns[job]}.{part}",
                        prompt_ids=list(ids),
                        sampling=Sampling(),
                        max_tokens=left,
                        seed=rng.randrange(2**31),
                        extra_args={"script": [rng.randrange(500) for _ in range(left)]},
                    )
                    result = await way.generate(request, timeout_s=CALL_TIMEOUT_S)
                    self.results.append((request, result))
                    ids += result.output_ids
                    left -= len(result.output_ids)
                    part += 1
                    if result.finish == "stop":
                        break
                self.turns[job] += 1

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self) -> None:
        """No job failed, and no token bears another version than that of the weights which made it."""
        for task in self.tasks:
            assert not task.done(), f"{task.get_name()} ended: {task.exception()!r}"
        wrong = [message for request, result in self.results if (message := lie_of(request, result))]
        assert not wrong, wrong[:3]

    @property
    def versions(self) -> set[str]:
        """Labels of all tokens so far."""
        return {span.version for _, result in self.results for span in result.spans}


def lie_of(request: GenRequest, result: GenResult) -> str:
    """What is wrong with the versions of an answer; empty when they are the truth."""
    weights: list[str] = []
    for span in result.spans:
        weights += [weights_of(span.version)] * (span.end - span.start)
    expected = logprobs_of(weights, request.prompt_ids, result.output_ids, replace(request.sampling, max_tokens=request.max_tokens))
    if result.logprobs == expected:
        return ""
    place = next(place for place, pair in enumerate(zip(result.logprobs, expected, strict=True)) if pair[0] != pair[1])
    spans = [(span.version, span.start, span.end) for span in result.spans]
    return f"{request.request_id} at {result.server}: token {place} of {spans} is not of {weights[place]}"


@asynccontextmanager
async def calling(settings: QueueSettings, client: AsyncClient, run: str = "run1") -> AsyncIterator[Callers]:
    """A worker process, as far as it concerns model servers: its way to them, and its keeper."""
    pool = InferencePool(client, settings.namespace, lease_s=settings.lease_s)
    stop = asyncio.Event()
    async with ModelServers(pool, lease_s=settings.lease_s) as servers, asyncio.TaskGroup() as tasks:
        keeper = PoolKeeper(PoolLooks(client, settings.namespace), servers.backend, period_s=0.2, round_s=0.05)
        tasks.create_task(keeper.run(stop), name="keeper")
        callers = Callers(servers, run)
        try:
            yield callers
        finally:
            await callers.leave()
            stop.set()


def all_turned(callers: Callers, turns: int = 1) -> Callable[[], bool]:
    """Whether each job has finished so many more turns from now on."""
    before = dict(callers.turns)
    return lambda: all(done >= before[job] + turns for job, done in callers.turns.items())
