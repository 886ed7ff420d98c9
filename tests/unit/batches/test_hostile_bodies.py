"""Bodies and manifests that broken or hostile workers and ranks could have written: refused by name, never trained on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pipeline.codec import encode
from pipeline.errors import NewerMessage, RollstreamError
from pipeline.messages import Trajectory, VersionSpan
from tests.unit.batches.bodies import HeldBodies, bodies_of, made_for
from tests.unit.batches.manifests import a_manifest, a_member
from trainer_client.batches.batch import batch_of
from trainer_client.batches.manifest import Manifest
from trainer_client.batches.rows import BadTrajectory

STEP = a_manifest([a_member(0, tokens=(8, 40)), a_member(1, tokens=(30,), reward=0.0)])
GROUP = STEP.groups[0]
KEY = STEP.trajectory_key(GROUP, GROUP.members[0])
GOOD = made_for(GROUP, GROUP.members[0])
FIRST, TURN = GOOD.segments[0], GOOD.turns[0]
ARRAYS = ("token_ids", "logprobs", "sampled_mask", "loss_mask")
FUZZED = 300
FLOATS = ("behaviour_logprobs", "advantages", "weights", "temperatures")


def in_segment(**changes: object) -> Trajectory:
    return replace(GOOD, segments=(replace(FIRST, **changes), *GOOD.segments[1:]))  # type: ignore[arg-type]


def in_turn(**changes: object) -> Trajectory:
    return replace(GOOD, turns=(replace(TURN, **changes),))  # type: ignore[arg-type]


def at_temperature(temperature: float) -> Trajectory:
    return in_turn(sampling=replace(TURN.sampling, temperature=temperature))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (in_segment(sampled_mask=FIRST.sampled_mask * 2, loss_mask=FIRST.loss_mask * 2), "mask with values other than 0 and 1"),
        (in_segment(loss_mask=FIRST.loss_mask * 2), "a loss on tokens that the model did not write"),
        (in_segment(versions=(VersionSpan(version="1.5", start=0, end=8),) * 9), "9 stretches of versions for 8 tokens"),
        (in_turn(start=-5), "turn 0 is tokens -5 to 8 of segment 0, which are not there"),
        (in_turn(end=2**40), "which are not there"),
        (in_turn(segment=-1), "of segment -1, which are not there"),
        (in_turn(segment=2), "of segment 2, which are not there"),
        (in_turn(start=8, end=5), "which are not there"),
        (at_temperature(float("nan")), "a temperature of nan"),
        (at_temperature(float("inf")), "a temperature of inf"),
        (at_temperature(-1.0), "a temperature of -1.0"),
        (replace(GOOD, segments=GOOD.segments * 40), "it has 80 segments, and the manifest tells of 2"),
        (
            in_segment(**{name: getattr(FIRST, name)[:-1] for name in ARRAYS}),
            "segment 0 has 7",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_must_not_be_trained_on_is_refused_by_name(body: Trajectory, sentence: str) -> None:
    bodies = HeldBodies(bodies_of(STEP) | {KEY: encode(body)})

    with pytest.raises(BadTrajectory, match=rf"trajectory of r\.e0-0\.0\.0: .*{sentence}"):
        await batch_of(STEP, bodies, pack=64)
    left = await batch_of(STEP, bodies, pack=64, missing="skip")
    assert list(left.missing) == ["r.e0-0.0.0"]


@pytest.mark.parametrize("version", ["9" * 1_000_000, "1.4294967295", "1.-3", "1.1e9", "default"], ids=lambda label: label[:12])
async def test_a_version_that_is_no_number_of_ours_is_none(version: str) -> None:
    spans = (VersionSpan(version=version, start=-(2**40), end=2**40),)
    batch = await batch_of(STEP, HeldBodies(bodies_of(STEP) | {KEY: encode(in_segment(versions=spans))}), rows=8)
    [arrays] = batch.microbatches()
    of_first = next(at for at, row in enumerate(batch.rows[0]) if (row.rollout.member, row.number) == (0, 0))
    assert (arrays.versions[of_first] == -1).all()


async def test_a_body_of_a_newer_major_version_says_whom_to_upgrade() -> None:
    raw = bytearray(encode(GOOD))
    raw[raw.index(b"\xa1v") + 2] = 2
    with pytest.raises(NewerMessage, match="message of schema 2, this process reads up to 1: upgrade it"):
        await batch_of(STEP, HeldBodies(bodies_of(STEP) | {KEY: bytes(raw)}), pack=64)


def harmed(raw: bytes, rng: random.Random) -> bytes:
    """Cut short, or with up to three bytes changed."""
    if rng.random() < 0.3:
        return raw[: rng.randrange(len(raw))]
    changed = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(changed)


async def come_to(make: Callable[[], Manifest], bodies: HeldBodies) -> str:
    """What a batch of it comes to: the name of one of our errors, or arrays that are all numbers."""
    try:
        batch = await batch_of(make(), bodies, pack=64)
    except RollstreamError as error:
        return type(error).__name__
    for arrays in batch.microbatches():
        for name in FLOATS:
            assert np.isfinite(getattr(arrays, name)).all(), name
    return "arrays"


async def test_whatever_bytes_come_it_is_an_error_of_ours_or_numbers() -> None:
    rng = random.Random(7)
    held, whole, good = bodies_of(STEP), STEP.to_bytes(), encode(GOOD)
    with np.errstate(over="ignore"):  # of rewards near the largest float
        of_manifests = {await come_to(lambda: Manifest.from_bytes(harmed(whole, rng)), HeldBodies(held)) for _ in range(FUZZED)}
    of_bodies = {await come_to(lambda: STEP, HeldBodies(held | {KEY: harmed(good, rng)})) for _ in range(FUZZED)}

    assert {"DamagedBody", "arrays"} <= of_manifests
    assert {"DamagedBody", "BadTrajectory", "arrays"} <= of_bodies


def test_a_manifest_whose_sizes_do_not_fit_together_is_none() -> None:
    member = GROUP.members[0]
    for changes in ({"loss_tokens": (4,)}, {"loss_tokens": (9, 20)}, {"loss_tokens": (-1, 20)}, {"attempt": -1}):
        with pytest.raises(ValueError, match=r"do not fit together|none is below 0"):
            replace(member, **changes)
