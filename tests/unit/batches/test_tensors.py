"""Tensors of a microbatch; run where there is a torch, which no environment of ours has (a gigabyte)."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from pipeline.testing.builders import a_segment, a_trajectory
from trainer_client.batches.packed import PackedRows, packed
from trainer_client.batches.padded import PaddedRows, padded
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import rows_of
from trainer_client.batches.tensors import as_tensors

torch = pytest.importorskip("torch", reason="needs torch, which the environment of the tests does not have")


def two_rows(form: str) -> PaddedRows | PackedRows:
    trajectory = a_trajectory(segments=(a_segment(8), a_segment(5)), turns=())
    rollout = Rollout(job="j", run="r", step=1, group="g", prompt_id="p", draw=0, member=0, group_size=1, trajectory=trajectory)
    rows = rows_of(rollout, advantage=1.0, weight=0.5)
    return padded(rows) if form == "padded" else packed(rows)


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_every_array_is_a_tensor_of_its_shape_and_values(form: str) -> None:
    microbatch = two_rows(form)

    found = as_tensors(microbatch)

    arrays = {field.name: getattr(microbatch, field.name) for field in fields(microbatch)}
    assert found.keys() == {name for name, value in arrays.items() if isinstance(value, np.ndarray)}
    for name, tensor in found.items():
        assert tensor.shape == arrays[name].shape
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_tensors_share_the_memory_of_the_arrays(form: str) -> None:
    microbatch = two_rows(form)

    as_tensors(microbatch)["weights"] += 1

    assert microbatch.weights.min() == 1.0
