"""Images from a row to a trainer, through workers, Redis and the shared folder, and gone with the ack."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.trajectory.image_files import save_images
from pipeline.blobs import BlobMissing, SharedFolder
from pipeline.errors import InvalidRequest
from pipeline.messages import Outcome
from pipeline.redis_client import AsyncClient, ask
from pipeline.requests import ChatRequest
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.gateway.service import workers
from tests.prompt_image_files import a_jpeg, a_png
from trainer_client import JobRequest, Manifest, StepRequest, connect, connect_reader
from trainer_client.adapters import skyrl, trl
from workers.llm import chatml
from workers.llm.scripted import Problem, ScriptedServer, ServerOptions
from workers.llm.scripted.images import image_tokens, vocabulary_with_images
from workers.llm.scripted.policy import PolicyOptions
from workers.llm.tokenizer import Tokenizer

LARGE, SMALL = a_png(1120, 560, shade=7), a_jpeg(56, 28)
QUESTION = "<image> Is it <image>?"
ROWS = [{"question": QUESTION, "answer": str(n), "images": [LARGE, SMALL]} for n in range(12)]
pytestmark = pytest.mark.one_server


@pytest.fixture
def chat(tmp_path: Path) -> ChatRequest:
    """Settings of a model that sees."""
    (tmp_path / "tokenizer.json").write_bytes(vocabulary_with_images())
    return ChatRequest(tokenizer=str(tmp_path / "tokenizer.json"), images=True)


def a_model(folder: Path, *, images: bool = True) -> ScriptedServer:
    options = ServerOptions(images=images, policy=PolicyOptions(long_rate=0.0, mean_steps=2.0))
    problems = [Problem(question="Is it?", answer="1")]
    return ScriptedServer(options, problems, tokenizer=Tokenizer(vocabulary_with_images()), socket_path=folder / "m.sock")


def a_step(chat: ChatRequest) -> StepRequest:
    return StepRequest(task="math", options={"tools": False}, groups=2, n=2, policy="every", chat=chat)


def files_below(folder: Path) -> list[Path]:
    """All that the store keeps of images."""
    return [*folder.glob("*/*/*/*/image*")]


async def test_images_reach_the_ranks_that_train_them_and_go_with_the_ack(
    settings: QueueSettings, client: AsyncClient, supervisor: Supervisor, store: SharedFolder, chat: ChatRequest, tmp_path: Path
) -> None:
    async with (
        a_model(tmp_path) as model,
        workers(settings, tmp_path),
        connect(settings, run="sees") as run,
        connect_reader(settings) as rank,
    ):
        await run.servers.attach(model.url)
        run.feed(ROWS)
        step = await anext(run.steps(a_step(chat), count=1, timeout_s=60))
        manifest = await step.manifest()
        mine = await step.batch(shard=(0, 2), rows=4, images=True)
        theirs = await rank.batch(Manifest.from_bytes(manifest.to_bytes()), shard=(1, 2), rows=4, images=True)
        with pytest.raises(InvalidRequest, match="images=True"):
            await step.batch(rows=4)
        with pytest.raises(InvalidRequest, match="images=True"):
            await step.rollouts()
        rollouts = await step.rollouts(images=True)
        shown = [microbatch.images for batch in (mine, theirs) for microbatch in batch.microbatches()]
        files = [[image.content() for image in row] for rows in shown for row in rows]
        made = skyrl.output_fields(rollouts, process=lambda found: (found, [len(file) for file in found]))
        with pytest.raises(InvalidRequest, match="the adapter of TRL"):
            trl.completions(rollouts)
        saved = [*save_images(rollouts[0].trajectory, rollouts[0].job, tmp_path / "saved", store)]
        bodies = [int(await ask(client, "STRLEN", manifest.trajectory_key(*entry))) for entry in manifest.entries]
        kept = files_below(tmp_path / "blobs")
        await step.ack()

    assert files == [[LARGE, SMALL]] * 4
    pad = Tokenizer(vocabulary_with_images()).special(chatml.IMAGE_PAD)
    for rollout in rollouts:
        (segment,) = rollout.trajectory.segments
        assert int((segment.token_ids == pad).sum()) == image_tokens(1120, 560) + image_tokens(56, 28)
    assert made["pixel_values"] == [[LARGE, SMALL]] * 4
    assert max(bodies) < 64 * 1024, "the record names them and has none of them"
    assert len(kept) >= 2 * 4
    assert len({path.parent for path in kept}) * 2 == len(kept), "each job keeps each image once"
    assert sorted(path.read_bytes() for path, _ in saved) == sorted((LARGE, SMALL))
    with pytest.raises(BlobMissing, match="acked"):
        shown[0][0][0].content()


async def test_a_row_with_images_for_a_model_that_sees_none_ends_the_job_with_what_to_do(
    settings: QueueSettings, store: SharedFolder, tmp_path: Path
) -> None:
    async with a_model(tmp_path) as model, workers(settings, tmp_path), connect(settings, run="blind") as run:
        await run.servers.attach(model.url)
        job = await run.submit(JobRequest(task="math", options={"tools": False}, prompt=ROWS[0]))
        result = await job.result(timeout_s=40)

    assert result.outcome is Outcome.INFRA_FAILURE
    assert "chat.images is off" in result.reason
    assert [body for _, body in model.requests if len(body.get("token_ids") or []) > 1] == [], "it was refused before it cost a token"


async def test_a_server_of_a_model_that_sees_none_ends_the_job_and_leaves_nothing(
    settings: QueueSettings, store: SharedFolder, chat: ChatRequest, tmp_path: Path
) -> None:
    async with a_model(tmp_path, images=False) as model, workers(settings, tmp_path), connect(settings, run="blind") as run:
        await run.servers.attach(model.url)
        job = await run.submit(JobRequest(task="math", options={"tools": False}, prompt=ROWS[0], chat=chat, max_failed=0))
        result = await job.result(timeout_s=40)

    assert result.outcome is Outcome.INFRA_FAILURE
    assert "not a multimodal model" in result.reason
    assert list(store.lives()) == []
