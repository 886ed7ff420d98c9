"""Experts from a server's answer to a trainer's arrays, through workers, Redis and the shared folder, and gone with the ack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.blobs import SharedFolder
from pipeline.messages import Outcome
from pipeline.redis_client import AsyncClient, ask
from pipeline.requests import RoutedExpertsRequest
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.gateway.service import workers
from trainer_client import JobRequest, Manifest, StepRequest, connect, connect_reader
from trainer_client.batches import experts_of
from workers.llm.scripted import Problem, ScriptedServer, ServerOptions
from workers.llm.scripted.experts import made_up_experts
from workers.llm.scripted.policy import PolicyOptions

MODEL = RoutedExpertsRequest(layers=48, top_k=8, experts=384)
PROBLEMS = [Problem(question=f"What is {n} + {n}?", answer=str(2 * n)) for n in range(12)]
ROWS = [{"question": problem.question, "answer": problem.answer} for problem in PROBLEMS]
STEP = StepRequest(task="math", options={"tools": False}, groups=2, n=2, policy="every", routed_experts=MODEL)
pytestmark = pytest.mark.one_server


def a_model(folder: Path, *, experts: bool = True) -> ScriptedServer:
    options = ServerOptions(routed_experts=MODEL.record() if experts else None, policy=PolicyOptions(long_rate=0.0, mean_steps=2.0))
    return ScriptedServer(options, PROBLEMS, socket_path=folder / "m.sock")


async def test_experts_reach_the_ranks_that_train_them_and_go_with_the_ack(
    settings: QueueSettings, client: AsyncClient, supervisor: Supervisor, store: SharedFolder, tmp_path: Path
) -> None:
    async with (
        a_model(tmp_path) as model,
        workers(settings, tmp_path),
        connect(settings, run="moe") as run,
        connect_reader(settings) as rank,
    ):
        await run.servers.attach(model.url)
        run.feed(ROWS)
        step = await anext(run.steps(STEP, count=1, timeout_s=30))
        manifest = await step.manifest()
        sent = Manifest.from_bytes(manifest.to_bytes())
        mine = await step.batch(shard=(0, 2), rows=4, routed_experts=True)
        theirs = await rank.batch(sent, shard=(1, 2), rows=4, routed_experts=True)
        bodies = [int(await ask(client, "STRLEN", manifest.trajectory_key(*entry))) for entry in manifest.entries]
        kept = list(store.lives())
        await step.ack()

    rows = [row for batch in (mine, theirs) for microbatch in batch.microbatches() for row in microbatch.rows]
    assert len(rows) == 4
    for row in rows:
        assert np.array_equal(experts_of(row), made_up_experts(row.token_ids, MODEL.record()))
    assert {kept_one.life.job for kept_one in kept} >= {row.rollout.job for row in rows}
    largest = max(row.n_tokens for row in rows)
    assert max(bodies) < 48 * 8 * largest, "the record names them and has none of them"
    left = {kept_one.life.job for kept_one in store.lives()}
    assert not left & {row.rollout.job for row in rows}


async def test_a_server_without_experts_ends_the_job_and_says_which_flag_it_lacks(
    settings: QueueSettings, store: SharedFolder, tmp_path: Path
) -> None:
    async with a_model(tmp_path, experts=False) as model, workers(settings, tmp_path), connect(settings, run="moe") as run:
        await run.servers.attach(model.url)
        job = await run.submit(JobRequest(task="math", options={"tools": False}, prompt=ROWS[0], routed_experts=MODEL))
        result = await job.result(timeout_s=20)

    assert result.outcome is Outcome.INFRA_FAILURE
    assert "--enable-return-routed-experts" in result.reason
    assert list(store.lives()) == []


async def test_workers_without_a_folder_end_the_job_and_name_the_setting(settings: QueueSettings, tmp_path: Path) -> None:
    async with a_model(tmp_path) as model, workers(settings, tmp_path), connect(settings, run="moe") as run:
        await run.servers.attach(model.url)
        job = await run.submit(JobRequest(task="math", options={"tools": False}, prompt=ROWS[0], routed_experts=MODEL, max_failed=0))
        result = await job.result(timeout_s=20)

    assert result.outcome is Outcome.INFRA_FAILURE
    assert "ROLLSTREAM_BLOBS_DIR" in result.reason
    assert [body for _, body in model.requests if len(body.get("token_ids") or []) > 1] == [], "it was refused before it cost a token"
