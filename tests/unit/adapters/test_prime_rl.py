"""prime-rl: samples of one entry a token, bit for bit, against the fields that were read in its source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from tests.unit.adapters.contracts import check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts, routed
from trainer_client.adapters.prime_rl import sample_fields, training_samples
from trainer_client.batches.experts import experts_of
from trainer_client.batches.rows import BadTrajectory, all_rows

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))


def test_samples_are_the_rows_of_all_trajectories_bit_for_bit() -> None:
    found = list(sample_fields(ROLLOUTS, masked=True))

    assert len(found) == len(ROWS) > len(ROLLOUTS)
    for fields, row in zip(found, ROWS, strict=True):
        check_fields("prime_rl.TrainingSample", fields)
        assert fields["token_ids"] == row.token_ids.tolist()
        assert fields["mask"][1:] == (row.loss_mask[1:] == 1).tolist()
        for name, array in (("logprobs", row.logprobs), ("temperatures", row.temperatures)):
            np.testing.assert_array_equal(np.array(fields[name], np.float32), array)
        np.testing.assert_array_equal(np.array(fields["advantages"][1:], np.float32), row.advantages[1:])
        assert fields["env_name"] == "math"
    assert {row.temperatures.min() for row in ROWS} == {np.float32(0.7), np.float32(1.0)}


def test_a_first_token_is_not_trained() -> None:
    """prime-rl shifts logits: what stands on the first token of a segment would be compared with a prediction from nothing."""
    first = [at for at, row in enumerate(ROWS) if row.loss_mask[0]]

    found = list(sample_fields(ROLLOUTS, masked=True))

    assert first
    assert not any(found[at]["mask"][0] or found[at]["advantages"][0] for at in first)


def test_experts_have_a_row_a_token_and_16_bits_where_there_are_more_than_256() -> None:
    """Engines give a row less than tokens, and one byte a number wraps around without a word."""
    for experts, dtype in ((256, "uint8"), (512, "uint16")):
        rollouts = routed(ROLLOUTS[:12], experts=experts)
        for fields, row in zip(sample_fields(rollouts, masked=True), all_rows(rollouts), strict=True):
            found = fields["routed_experts"]
            assert (found["shape"], found["dtype"]) == ([row.n_tokens, 2, 3], dtype)
            array = np.frombuffer(found["data"], dtype).reshape(found["shape"])
            np.testing.assert_array_equal(array[:-1], experts_of(row))
            assert not array[-1].any()


def test_what_nothing_is_trained_of_is_left_out_unless_asked_for() -> None:
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    found = list(sample_fields([*ROLLOUTS, empty]))

    assert len(found) == sum(bool(row.loss_mask[1:].any()) for row in ROWS) < len(ROWS)
    assert list(sample_fields([empty], masked=True)) == []


def test_what_has_no_advantage_or_a_logprob_of_nan_is_refused() -> None:
    segment = ROLLOUTS[0].trajectory.segments[0]
    bad = replace(segment, logprobs=np.full(len(segment.logprobs), np.nan, np.float32))

    with pytest.raises(InvalidRequest, match="GRPO"):
        list(sample_fields([replace(ROLLOUTS[0], advantage=None)]))
    with pytest.raises(BadTrajectory, match="logprob of nan"):
        list(sample_fields([replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=(bad,)))]))


def test_with_prime_rl_itself() -> None:
    pytest.importorskip("prime_rl", reason="needs prime_rl, which the environment of the tests does not have")

    assert len(training_samples(ROLLOUTS, masked=True)) == len(ROWS)
