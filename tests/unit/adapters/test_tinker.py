"""tinker: inputs and targets of T - 1 tokens, bit for bit; with its own types where it is installed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import Segment, VersionSpan
from tests.unit.adapters.contracts import check_arrays, check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts
from trainer_client.adapters.tinker import data, datum_fields
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, all_rows

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))


def test_what_speaks_of_a_token_stands_where_it_is_the_target() -> None:
    """A converter that shifted targets and not logprobs lost the last token: input t is answered by target t, which is token t + 1."""
    rows = [row for row in ROWS if row.n_tokens > 1]

    found = list(datum_fields(ROLLOUTS, mask=True, masked=True))

    assert len(found) == len(rows)
    for fields, row in zip(found, rows, strict=True):
        inputs = fields["loss_fn_inputs"]
        check_arrays("tinker.importance_sampling", inputs, A=row.n_tokens - 1)
        assert fields["tokens"] == row.token_ids[:-1].tolist()
        assert [fields["tokens"][0], *inputs["target_tokens"]] == row.token_ids.tolist()
        np.testing.assert_array_equal(inputs["mask"], row.loss_mask[1:])
        np.testing.assert_array_equal(inputs["logprobs"], row.logprobs[1:])
        np.testing.assert_array_equal(inputs["advantages"], row.loss_mask[1:] * np.float32(row.rollout.advantage or 0.0))


def test_what_nothing_is_trained_of_is_left_out_unless_asked_for() -> None:
    kept = [row for row in ROWS if row.loss_mask[1:].any()]

    found = list(datum_fields(ROLLOUTS))

    assert [fields["tokens"] for fields in found] == [row.token_ids[:-1].tolist() for row in kept]
    assert len(kept) < len(ROWS)
    assert "mask" not in found[0]["loss_fn_inputs"], "forward_backward refuses an input that its loss does not know"


def test_a_first_token_has_no_target_and_a_lone_one_no_datum() -> None:
    """Nothing stands before it that it could have been predicted from; a made-up input would be trained on."""
    lone = _of_tokens(ROLLOUTS[0], 1)
    two = _of_tokens(ROLLOUTS[0], 2)

    assert list(datum_fields([lone], masked=True)) == []
    (fields,) = datum_fields([two])
    assert (fields["tokens"], fields["loss_fn_inputs"]["target_tokens"].tolist()) == ([7], [8])


def test_what_sampled_nothing_gives_no_datum_and_what_has_no_advantage_is_refused() -> None:
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    assert list(datum_fields([empty])) == []
    with pytest.raises(InvalidRequest, match="GRPO"):
        list(datum_fields([replace(ROLLOUTS[0], advantage=None)]))


def test_a_logprob_of_nan_is_refused() -> None:
    bad = _of_tokens(ROLLOUTS[0], 3)
    bad.trajectory.segments[0].logprobs[1] = np.nan

    with pytest.raises(BadTrajectory, match="token 1 of segment 0"):
        list(datum_fields([bad]))


def test_a_datum_has_the_fields_of_tinker() -> None:
    check_fields("tinker.Datum", {"model_input": None, "loss_fn_inputs": None})


def test_with_tinker_itself() -> None:
    pytest.importorskip("tinker", reason="needs tinker, which the environment of the tests does not have")
    rows = [row for row in ROWS if row.loss_mask[1:].any()]

    found = data(ROLLOUTS)

    assert len(found) == len(rows)
    for datum, row in zip(found, rows, strict=True):
        inputs = {name: value.to_numpy() for name, value in datum.loss_fn_inputs.items()}
        assert datum.model_input.to_ints() == row.token_ids[:-1].tolist()
        assert {name: datum.loss_fn_inputs[name].dtype for name in inputs} == {
            "target_tokens": "int64",
            "logprobs": "float32",
            "advantages": "float32",
        }
        np.testing.assert_array_equal(inputs["target_tokens"], row.token_ids[1:])
        np.testing.assert_array_equal(inputs["logprobs"], row.logprobs[1:])
        np.testing.assert_array_equal(inputs["advantages"], row.advantages[1:])


def _of_tokens(rollout: Rollout, tokens: int) -> Rollout:
    """A trajectory that sampled all of its few tokens after an empty prompt."""
    ones = np.ones(tokens, np.uint8)
    segment = Segment(
        token_ids=np.arange(7, 7 + tokens, dtype=np.uint32),
        sampled_mask=ones,
        loss_mask=ones,
        logprobs=np.full(tokens, -0.5, np.float32),
        versions=(VersionSpan(version="1.4", start=0, end=tokens),),
    )
    return replace(rollout, trajectory=replace(rollout.trajectory, segments=(segment,), turns=()))
