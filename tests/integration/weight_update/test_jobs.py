"""Whole jobs over absences and updates that last longer than their leases and their deadlines: none pays for it (ADR 13)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, redis_now_ms
from pipeline.settings import QueueSettings
from pipeline.testing import QueueAudit, wait_until
from tests.integration.weight_update.engines import Engines, lies_in
from tests.integration.weight_update.loading import load, weights_of
from trainer_client import JobRequest, LimitsRequest, Result, Run, SamplingRequest
from workers.llm.scripted import Latency, ServerOptions

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(120)]
JOBS = 64
RUN_ACTIVE_S = 10.0
"""A busy machine takes five seconds of it for 64 answers of two."""
AWAY_S = 10.5
"""Above three leases and the RUN deadline."""
WALL_S = 20.0
"""A busy machine takes ten seconds of it to begin 64 jobs."""
LONG_AWAY_S = 21.0
"""Above two RUN deadlines and the wall deadline."""
TOKEN_S, TOKENS = 0.02, 100
"""Most answers are as long as they may be: their jobs call the model for two seconds."""


def requests() -> list[JobRequest]:
    return [
        JobRequest(
            task="math",
            id=f"j{number}",
            prompt={"question": f"What is {number} plus 1?", "answer": str(number + 1)},
            options={"tools": False},
            sampling=SamplingRequest(max_tokens=TOKENS),
            limits=LimitsRequest(max_turns=1, run_active_s=RUN_ACTIVE_S),
            wall_s=WALL_S,
        )
        for number in range(JOBS)
    ]


Absence = Callable[[Run], AbstractAsyncContextManager[object]]


@pytest.mark.parametrize(
    ("absence", "away_s"),
    [
        pytest.param(lambda run: run.engines_away(weights_kept=True), LONG_AWAY_S, id="away"),
        pytest.param(lambda run: run.weight_update(2, mode="keep"), AWAY_S, id="frozen"),
        pytest.param(lambda run: run.weight_update(2, mode="abort"), AWAY_S, id="aborted"),
    ],
)
async def test_64_running_jobs_lose_nothing_while_their_engines_are_away(
    run: Run, engines: Engines, settings: QueueSettings, client: AsyncClient, workers: None, absence: Absence, away_s: float
) -> None:
    audit = QueueAudit(client, Keys.of_shard(settings.namespace, 0))
    jobs = await run.submit(requests())

    async def all_wait() -> bool:
        found = [await audit.hash(audit.keys.job(job.id)) for job in jobs]
        return all((fields["stage"], fields["st"]) == ("run", "running") for fields in found)

    await wait_until(all_wait, "all of them wait for the first server", timeout_s=40)
    options = ServerOptions(latency=Latency(per_token_s=TOKEN_S, sigma=0.0))
    await run.servers.attach([await engines.start(name, options) for name in ("a", "b")], control="trainer")
    async with run.weight_update(1) as servers:
        for server in servers:
            await load(server.url, weights_of(servers.version))
    both = [engines[name].engine for name in ("a", "b")]

    def answered() -> int:
        return sum(engine.finished["stop"] + engine.finished["length"] for engine in both)

    # on a busy machine the first has its answer before the last one calls: then some have ended, and some still wait for a server
    await wait_until(
        lambda: sum(engine.n_running for engine in both) + answered() == JOBS or answered() > 0, "all of them call the model", timeout_s=40
    )

    async with absence(run) as servers:  # type: ignore[assignment]  # of an update; nothing of an absence
        answered_before = answered()
        ends_ms = await redis_now_ms(client) + away_s * 1000

        async def is_over() -> bool:
            return await redis_now_ms(client) >= ends_ms

        await wait_until(is_over, "leases and deadlines have passed", timeout_s=2 * away_s)
        assert answered() == answered_before < JOBS
        states = [(await audit.hash(audit.keys.job(job.id)))["st"] for job in jobs]
        assert JOBS - states.count("done") >= JOBS - answered_before, "none has ended of them"
        for server in servers or ():
            await load(server.url, weights_of(servers.version))

    results: dict[str, Result] = {result.job: result async for result in run.results(jobs, timeout_s=60)}
    assert len(results) == JOBS
    for result in results.values():
        assert result.record.stop in ("finished", "tokens"), result.record
        assert result.record.sampled_tokens <= TOKENS, "what an abort interrupted went on with the rest of its budget"
        fields = await audit.hash(audit.keys.job(result.job))
        assert (fields["att"], fields["failed"], fields["lost"]) == ("3", "0", "0"), "one attempt a stage"
        trajectory = await result.trajectory()
        assert trajectory is not None
        assert lies_in(trajectory) == []
