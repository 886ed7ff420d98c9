"""What ranks agree on: a manifest as bytes, changed, cut, and the advantages that follow from it."""

from __future__ import annotations

import math
from dataclasses import replace

import msgpack
import numpy as np
import pytest

from pipeline.errors import DamagedBody, InvalidRequest, NewerMessage
from pipeline.messages import SCHEMA_MAJOR
from pipeline.supervisor.loss_policy import Loss
from tests.unit.batches.manifests import a_manifest, a_member
from trainer_client.batches.advantages import GRPO, LeaveOneOut, Overlong
from trainer_client.batches.loss_weights import StepTotals
from trainer_client.batches.manifest import Manifest
from trainer_client.batches.step_advantages import advantages_of

MANIFEST = a_manifest(
    [a_member(0, tokens=(8, 4)), a_member(2, reward=0.0, tokens=(20,), loss=Loss.MASK), a_member(3, tokens=(), attempt=0, reward=0.25)],
    [a_member(0, reward=0.5), a_member(1, reward=1 / 3)],
)


def test_it_comes_back_from_its_bytes_as_it_was() -> None:
    assert Manifest.from_bytes(MANIFEST.to_bytes()) == MANIFEST
    assert Manifest.from_bytes(MANIFEST.to_bytes()).to_bytes() == MANIFEST.to_bytes()


def test_a_large_step_is_small_enough_to_be_sent_to_every_rank() -> None:
    """64 groups of 8 members of three segments each."""
    manifest = a_manifest(*([a_member(number, tokens=(30_000, 20_000, 10_000)) for number in range(8)] for _ in range(64)))

    assert len(manifest.to_bytes()) / 512 < 300


def test_bytes_that_are_no_manifest_or_a_newer_one_are_refused() -> None:
    newer = b"\x00" + msgpack.packb({"v": SCHEMA_MAJOR + 1, "run": "r"})
    with pytest.raises(NewerMessage):
        Manifest.from_bytes(newer)
    for raw in (b"", b"\x00\x80", MANIFEST.to_bytes()[:-1], b"\x00" + msgpack.packb({"v": SCHEMA_MAJOR, "run": "r", "step": "3"})):
        with pytest.raises(DamagedBody):
            Manifest.from_bytes(raw)


def test_only_what_is_trained_has_loss_tokens() -> None:
    assert MANIFEST.totals == StepTotals(loss_tokens=6 + 4 + 4, trajectories=3)


def test_rewards_of_the_trainers_own_making() -> None:
    changed = MANIFEST.with_rewards(lambda _, member: member.reward - 0.01 * member.sampled_tokens)

    assert [member.reward for _, member in changed.entries] == [0.94, -0.1, 0.25, 0.46, pytest.approx(1 / 3 - 0.04)]
    assert MANIFEST.entries[0][1].reward == 1.0
    with pytest.raises(InvalidRequest, match=r"r\.e0-0\.0\.2"):
        MANIFEST.with_rewards(lambda _, member: math.nan if member.number == 2 else 0.0)


def test_groups_are_left_out_and_parts_are_whole_groups() -> None:
    assert [group.id for group in MANIFEST.without({"r.e0-0.0"}).groups] == ["r.e0-1.0"]
    seven = a_manifest(*([a_member()] for _ in range(7)))

    parts = seven.parts(3)

    assert [len(part.groups) for part in parts] == [2, 2, 3]
    assert [group for part in parts for group in part.groups] == list(seven.groups)
    with pytest.raises(InvalidRequest, match="1 to 7 parts"):
        seven.parts(8)


def test_advantages_are_of_groups_in_order_and_count_members_without_a_trajectory() -> None:
    found = advantages_of(MANIFEST, LeaveOneOut())

    np.testing.assert_allclose(found[:3], LeaveOneOut().of_group(np.array([1.0, 0.0, 0.25])))
    np.testing.assert_allclose(found[3:], LeaveOneOut().of_group(np.array([0.5, 1 / 3])))


def test_the_penalty_for_length_comes_before_the_statistics_of_the_group() -> None:
    """It looks at sampled tokens of the whole trajectory: 6, 10 and none."""
    found = advantages_of(MANIFEST, GRPO(std=False), Overlong(max_tokens=10, margin=8))

    shaped = np.array([1.0 - 0.5, 0.0 - 1.0, 0.25])
    np.testing.assert_allclose(found[:3], shaped - shaped.mean())


def test_advantages_that_a_trainer_brings_are_taken_by_job_and_must_be_complete() -> None:
    given = {group.job(member): float(place) for place, (group, member) in enumerate(MANIFEST.entries)}

    assert advantages_of(MANIFEST, given) == (0.0, 1.0, 2.0, 3.0, 4.0)
    with pytest.raises(InvalidRequest, match=r"r\.e0-1\.0\.1"):
        advantages_of(MANIFEST, {job: value for job, value in given.items() if job != "r.e0-1.0.1"})
    with pytest.raises(InvalidRequest, match="finite"):
        advantages_of(MANIFEST, {**given, "r.e0-0.0.0": math.inf})
    with pytest.raises(InvalidRequest, match="overlong"):
        advantages_of(MANIFEST, given, Overlong(max_tokens=10, margin=8))


def test_a_reward_that_is_no_number_is_named() -> None:
    members = (a_member(0), replace(a_member(1), reward=math.nan))

    with pytest.raises(InvalidRequest, match=r"r\.e0-0\.0\.1"):
        advantages_of(a_manifest(members), GRPO())
