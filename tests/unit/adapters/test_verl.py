"""verl: rows bit for bit in its three forms; with its own types where it is installed.

Legend for array shapes: B rows, P tokens of the longest prompt, R of the longest response.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from tests.unit.adapters.contracts import check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts, routed
from trainer_client.adapters.verl import agent_loop_outputs, data_fields, data_proto, output_fields, queue_rows
from trainer_client.batches.experts import known_experts
from trainer_client.batches.rows import BadTrajectory, all_rows, rows_of

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))


def test_outputs_of_agent_loops_are_the_rows_bit_for_bit() -> None:
    found = [fields for rollout in ROLLOUTS for fields in output_fields(rollout)]

    assert len(found) == len(ROWS)
    for fields, row in zip(found, ROWS, strict=True):
        check_fields("verl.AgentLoopOutput", fields)
        check_fields("verl.AgentLoopMetrics", fields["metrics"])
        at = row.prompt_tokens
        assert [*fields["prompt_ids"], *fields["response_ids"]] == row.token_ids.tolist()
        assert len(fields["prompt_ids"]) == at
        assert fields["response_mask"] == row.loss_mask[at:].tolist()
        np.testing.assert_array_equal(np.array(fields["response_logprobs"], np.float32), row.logprobs[at:])
        assert fields["reward_score"] == row.rollout.reward
        assert fields["extra_fields"]["min_global_steps"] <= fields["extra_fields"]["max_global_steps"]


def test_a_batch_pads_prompts_left_and_responses_right() -> None:
    found = data_fields(ROLLOUTS, pad_id=7, advantages=True)

    batch, prompts = found.batch, found.batch["prompts"].shape[1]
    assert {name: array.dtype for name, array in batch.items()} == {
        **dict.fromkeys(("prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask"), np.dtype(np.int64)),
        **dict.fromkeys(("rollout_log_probs", "rm_scores", "advantages", "returns"), np.dtype(np.float32)),
    }
    for b, row in enumerate(ROWS):
        attended = batch["attention_mask"][b] == 1
        np.testing.assert_array_equal(batch["input_ids"][b][attended], row.token_ids)
        assert (batch["input_ids"][b][~attended] == 7).all()
        np.testing.assert_array_equal(batch["position_ids"][b][attended], np.arange(row.n_tokens))
        response = attended[prompts:]
        np.testing.assert_array_equal(batch["responses"][b][response], row.token_ids[row.prompt_tokens :])
        np.testing.assert_array_equal(batch["response_mask"][b][response], row.loss_mask[row.prompt_tokens :])
        np.testing.assert_array_equal(batch["rollout_log_probs"][b][response], row.logprobs[row.prompt_tokens :])
        np.testing.assert_array_equal(batch["advantages"][b][response], row.advantages[row.prompt_tokens :])
        for name in ("response_mask", "rollout_log_probs", "advantages", "rm_scores"):
            assert not batch[name][b][~response].any()
        assert batch["rm_scores"][b][response][-1] == batch["rm_scores"][b].sum() == np.float32(row.rollout.reward)
    assert found.non_tensor_batch["uid"].tolist() == [row.rollout.group for row in ROWS]
    assert found.meta_info["reward_extra_keys"] == ["format", "score"]
    assert all(len(array) == len(ROWS) for array in found.non_tensor_batch.values())


def test_rows_of_the_queue_come_before_their_prompt_and_name_group_session_and_row() -> None:
    """verl takes a group as soon as its prompt is finished, and the statistics of a session from its last row."""
    found = queue_rows(ROLLOUTS, global_steps=3)

    done: set[str] = set()
    rows = iter(ROWS)
    for put in found:
        if not put.fields:
            assert put.tag == {"is_prompt": True, "status": "finished", "global_steps": 3}
            done.add(put.key)
            continue
        row = next(rows)
        uid, session, index = put.key.rsplit("_", 2)
        assert uid not in done
        assert (uid, int(session)) == (row.rollout.group.replace("_", "-"), row.rollout.member)
        assert int(index) == [other.number for other in rows_of(row.rollout)].index(row.number)
        np.testing.assert_array_equal(put.fields["input_ids"], row.token_ids)
        np.testing.assert_array_equal(put.fields["loss_mask"], row.loss_mask[row.prompt_tokens :])
        np.testing.assert_array_equal(put.fields["rollout_log_probs"], row.logprobs[row.prompt_tokens :])
        assert put.tag["prompt_len"] + put.tag["response_len"] == put.tag["seq_len"] == row.n_tokens  # type: ignore[operator]  # numbers
    assert next(rows, None) is None
    assert done == {rollout.group.replace("_", "-") for rollout in ROLLOUTS}


def test_a_run_with_an_underscore_in_its_name_keeps_its_keys_apart() -> None:
    rollout = replace(ROLLOUTS[0], group="my_run.e0-1.0")

    assert [put.key.count("_") for put in queue_rows([rollout], global_steps=1)][-1] == 0


def test_what_sampled_nothing_gives_no_row() -> None:
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    assert output_fields(empty) == []
    assert data_fields([empty]).batch["input_ids"].shape == (0, 0)
    assert [put.key for put in queue_rows([empty], global_steps=1)] == [empty.group]


def test_experts_stand_at_their_tokens_and_zeros_at_all_others() -> None:
    rollouts = routed(ROLLOUTS[:40])
    rows = list(all_rows(rollouts))

    outputs = [fields for rollout in rollouts for fields in output_fields(rollout)]
    batch = data_fields(rollouts).batch
    queued = [put.fields for put in queue_rows(rollouts, global_steps=3) if put.fields]

    assert batch["routed_experts"].shape == (*batch["input_ids"].shape, 2, 3)
    for b, (row, output, fields) in enumerate(zip(rows, outputs, queued, strict=True)):
        check_fields("verl.AgentLoopOutput", output)
        known = known_experts(row)
        attended = batch["attention_mask"][b] == 1
        in_batch, in_queue = batch["routed_experts"][b], np.asarray(fields["routed_experts"])
        assert {array.dtype.name for array in (in_batch, in_queue, output["routed_experts"])} == {"int16"}
        assert len(output["routed_experts"]) == row.n_tokens - 1 == len(output["prompt_ids"]) + len(output["response_ids"]) - 1
        assert len(in_queue) == row.n_tokens
        for found in (in_batch[attended], in_queue, output["routed_experts"]):
            np.testing.assert_array_equal(found[: len(known)], known)
            assert not found[len(known) :].any()
        assert not in_batch[~attended].any()
    assert max(int(known_experts(row).max()) for row in rows) > 255


def test_rows_with_and_without_experts_are_no_batch() -> None:
    with pytest.raises(InvalidRequest, match="routed_experts=True"):
        data_fields([*routed(ROLLOUTS[:1]), ROLLOUTS[1]])
    assert "routed_experts" not in data_fields(ROLLOUTS[:2]).batch


def test_an_expert_that_does_not_fit_is_not_made_another() -> None:
    (rollout,) = routed(ROLLOUTS[:1], experts=2**16)

    with pytest.raises(BadTrajectory, match="16 bits with a sign"):
        output_fields(rollout)


def test_with_verl_itself() -> None:
    pytest.importorskip("verl", reason="needs verl, which the environment of the tests does not have")

    outputs = [output for rollout in ROLLOUTS for output in agent_loop_outputs(rollout)]
    proto = data_proto(ROLLOUTS, advantages=True)

    assert [output.as_dict()["responses"].tolist() for output in outputs] == [row.token_ids[row.prompt_tokens :].tolist() for row in ROWS]
    assert len(proto) == len(ROWS)
    proto.check_consistency()
    rollouts = routed(ROLLOUTS[:8])
    routing = data_proto(rollouts).batch["routed_experts"]
    assert (str(routing.dtype), routing.shape[2:]) == ("torch.int16", (2, 3))
    first = next(output for rollout in rollouts for output in agent_loop_outputs(rollout))
    assert len(first.routed_experts) == len(first.prompt_ids) + len(first.response_ids) - 1
    assert proto.batch["advantages"].shape == proto.batch["responses"].shape
