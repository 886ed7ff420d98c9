"""Images at the trainer: at their tokens, read when asked for and checked, passed on by the adapters that can and refused by all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline.blobs import IMAGE, BlobMissing, DamagedBlob, Life, SharedFolder
from pipeline.codec import decode, encode
from pipeline.errors import InvalidRequest
from pipeline.messages import Segment, SegmentImage, Trajectory
from tests.prompt_image_files import a_jpeg, a_png
from tests.unit.adapters.random_rollouts import single_rows
from trainer_client.adapters import areal, nemo_rl, openrlhf, prime_rl, rllm, skyrl, slime, tinker, trl, verl
from trainer_client.batches import BadTrajectory, Rollout, Row, contents
from trainer_client.batches.packed import packed
from trainer_client.batches.padded import padded
from trainer_client.batches.rows import rows_of
from workers.agent.invariants import faults_of

PAD = 151_655
FILES = (a_png(56, 28), a_jpeg(28, 28))
KINDS = (("image/png", 56, 28), ("image/jpeg", 28, 28))


def a_store(folder: Path) -> SharedFolder:
    return SharedFolder(folder, min_free_bytes=0, fsync=False)


def seen(rollout: Rollout, store: SharedFolder, *places: tuple[int, int], order: Sequence[int] = (0, 1)) -> Rollout:
    """The rollout with images at some of its tokens, put before those that it has."""
    (segment,) = rollout.trajectory.segments
    places = places or ((1, 3), (4, 5))
    n = max(end for _, end in places) + 1
    head = np.full(n, 7, np.uint32)
    for start, end in places:
        head[start:end] = PAD
    life = Life.new(rollout.job, 1)
    blobs = [store.put(life, IMAGE, np.frombuffer(file, np.uint8), part=number) for number, file in enumerate(FILES)]
    images = tuple(
        SegmentImage(start=start, end=end, media_type=KINDS[which][0], width=KINDS[which][1], height=KINDS[which][2], blob=blobs[which])
        for (start, end), which in zip(places, order, strict=True)
    )
    grown = replace(
        segment,
        token_ids=np.concatenate([head, segment.token_ids]),
        sampled_mask=np.concatenate([np.zeros(n, np.uint8), segment.sampled_mask]),
        loss_mask=np.concatenate([np.zeros(n, np.uint8), segment.loss_mask]),
        logprobs=np.concatenate([np.full(n, np.nan, np.float32), segment.logprobs]),
        versions=tuple(replace(span, start=span.start + n, end=span.end + n) for span in segment.versions),
        images=images,
    )
    turns = tuple(replace(turn, start=turn.start + n, end=turn.end + n, checksum=-1) for turn in rollout.trajectory.turns)
    return replace(rollout, trajectory=replace(rollout.trajectory, segments=(grown,), turns=turns), blobs=store)


@pytest.fixture
def store(tmp_path: Path) -> SharedFolder:
    return a_store(tmp_path)


@pytest.fixture
def plain() -> Rollout:
    """A rollout of one row, without images."""
    return next(rollout for rollout in single_rows() if len(rollout.trajectory.segments[0].token_ids) > 8 and rollout.loss == "train")


def row_of(rollout: Rollout) -> Row:
    (row,) = rows_of(rollout)
    return row


def test_a_row_has_its_images_in_order_with_their_tokens_and_files(store: SharedFolder, plain: Rollout) -> None:
    row = row_of(seen(plain, store, (1, 3), (4, 5), (7, 9), order=(1, 0, 1)))

    assert [(image.start, image.end, image.media_type, image.width) for image in row.images] == [
        (1, 3, "image/jpeg", 28),
        (4, 5, "image/png", 56),
        (7, 9, "image/jpeg", 28),
    ]
    assert contents(row.images) == [FILES[1], FILES[0], FILES[1]]
    assert row.images[0].digest == row.images[2].digest


def test_microbatches_have_the_images_of_each_row(store: SharedFolder, plain: Rollout) -> None:
    rows = [row_of(seen(plain, store)), row_of(plain)]

    for microbatch in (padded(rows), packed(rows)):
        assert [len(images) for images in microbatch.images] == [2, 0]
        assert (microbatch.token_ids.reshape(-1)[1:3] == PAD).all()


def test_a_record_with_images_survives_the_wire_and_keeps_its_promises(store: SharedFolder, plain: Rollout) -> None:
    trajectory = seen(plain, store).trajectory

    again = decode(Trajectory, encode(trajectory))

    assert again.segments[0].images == trajectory.segments[0].images
    assert [fault for fault in faults_of(again) if "image" in fault.what] == []


def test_a_file_that_is_gone_or_another_is_never_given(store: SharedFolder, plain: Rollout, tmp_path: Path) -> None:
    rollout = seen(plain, store)
    image, other = row_of(rollout).images
    (path,) = tmp_path.glob(f"rs/*/{rollout.job}/*/image.0")
    path.write_bytes(FILES[0][:-1] + b"\0")
    with pytest.raises(DamagedBlob, match="digest"):
        image.content()

    store.drop_jobs(rollout.run, [rollout.job])
    with pytest.raises(BlobMissing):
        other.content()


def test_a_record_that_tells_of_another_size_than_the_file_has_is_not_believed(store: SharedFolder, plain: Rollout) -> None:
    image = replace(row_of(seen(plain, store)).images[0], width=28)

    with pytest.raises(DamagedBlob, match=r"it is image/png, 56 x 28, and the record says image/png, 28 x 28"):
        image.content()


def test_rollouts_that_were_read_without_images_say_how_to_get_them(store: SharedFolder, plain: Rollout) -> None:
    rollout = replace(seen(plain, store), blobs=None)

    with pytest.raises(InvalidRequest, match="images=True"):
        row_of(rollout).images[0].content()


def bent(segment: Segment, **changes: object) -> Segment:
    return replace(segment, images=(segment.images[0], replace(segment.images[1], **changes)))  # type: ignore[arg-type]  # fields by name


BENT: dict[str, tuple[Callable[[Segment], Segment], str]] = {
    "on another": (lambda segment: bent(segment, start=2), "where none can stand"),
    "behind the end": (lambda segment: bent(segment, end=10**6), "where none can stand"),
    "of no token": (lambda segment: bent(segment, end=4), "where none can stand"),
    "on what was sampled": (lambda segment: bent(segment, end=len(segment.token_ids)), "which the model wrote"),
    "no file": (lambda segment: bent(segment, blob=replace(segment.images[1].blob, dtype="float32")), "names an image as"),
    "left out": (lambda segment: replace(segment, images=segment.images[:1]), "stands for an image, and there is none"),
}


@pytest.mark.parametrize("how", BENT)
def test_images_where_none_can_be_refuse_the_trajectory(how: str, store: SharedFolder, plain: Rollout) -> None:
    bend, told = BENT[how]
    rollout = seen(plain, store)
    (segment,) = rollout.trajectory.segments
    broken = replace(rollout, trajectory=replace(rollout.trajectory, segments=(bend(segment),)))

    with pytest.raises(BadTrajectory, match=told):
        rows_of(broken)
    if how != "left out":  # of that a worker knows nothing: it is the vocabulary's word
        assert any("image" in fault.what for fault in faults_of(broken.trajectory))


def test_skyrl_gets_what_the_callers_processor_makes(store: SharedFolder, plain: Rollout) -> None:
    rollouts = [seen(plain, store), replace(plain, job=f"{plain.job}1")]

    fields = skyrl.output_fields(rollouts, process=lambda files: (files, [[1, 2, 2]] * len(files)))

    assert fields["pixel_values"] == [[*FILES], None]
    assert fields["image_grid_thw"] == [[[1, 2, 2], [1, 2, 2]], None]
    assert skyrl.output_fields([plain])["pixel_values"] is None
    with pytest.raises(InvalidRequest, match="pass process"):
        skyrl.output_fields(rollouts)
    with pytest.raises(InvalidRequest, match="a row for each of 2 images"):
        skyrl.output_fields(rollouts, process=lambda files: (files, []))


def test_verls_agent_loops_get_images(store: SharedFolder, plain: Rollout) -> None:
    (fields,) = verl.output_fields(seen(plain, store), decode=len)

    assert fields["multi_modal_data"] == {"images": [len(file) for file in FILES]}
    assert "multi_modal_data" not in verl.output_fields(plain)[0]
    with pytest.raises(InvalidRequest, match="pass decode"):
        verl.output_fields(seen(plain, store))


WITHOUT: dict[str, Callable[[list[Rollout]], object]] = {
    "TRL": trl.completions,
    "TRL, asynchronous": lambda rollouts: list(trl.sample_fields(rollouts)),
    "verl's batches": verl.data_fields,
    "verl's queue": partial(verl.queue_rows, global_steps=0),
    "NeMo RL": lambda rollouts: list(nemo_rl.record_fields(rollouts)),
    "NeMo RL, batches": nemo_rl.train_fields,
    "NeMo RL, rows": nemo_rl.datum_specs,
    "OpenRLHF": lambda rollouts: list(openrlhf.experience_fields(rollouts, n=1)),
    "OpenRLHF, trained": lambda rollouts: list(openrlhf.trained_fields(rollouts)),
    "an executor of OpenRLHF": lambda rollouts: openrlhf.executor_output(rollouts[0]),
    "tinker": lambda rollouts: list(tinker.datum_fields(rollouts)),
    "prime-rl": lambda rollouts: list(prime_rl.sample_fields(rollouts)),
    "slime": lambda rollouts: list(slime.sample_fields(rollouts, n=1)),
    "slime, trained": lambda rollouts: list(slime.trained_fields(rollouts)),
    "AReaL": lambda rollouts: list(areal.episode_fields(rollouts, n=1)),
    "AReaL, trained": lambda rollouts: list(areal.trained_fields(rollouts)),
    "rLLM": lambda rollouts: list(rllm.episode_fields(rollouts)),
}


@pytest.mark.parametrize("trainer", WITHOUT)
def test_adapters_without_a_place_for_images_refuse_them(trainer: str, store: SharedFolder, plain: Rollout) -> None:
    given = [seen(plain, store)]

    with pytest.raises(InvalidRequest, match=f"the adapter of {trainer.partition(',')[0].removesuffix(' queue').removesuffix(' batches')}"):
        WITHOUT[trainer](given)
