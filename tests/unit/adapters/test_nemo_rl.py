"""NeMo RL: message logs, records and train batches bit for bit, against the fields that were read in its source.

Legend for array shapes: N rows, T tokens of the longest, P tokens of the longest prompt.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import Trajectory
from tests.unit.adapters.contracts import check_arrays, check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts, routed, single_rows
from trainer_client.adapters.nemo_rl import datum_specs, message_log, prompt_group_records, record_fields, train_batch, train_fields
from trainer_client.batches.experts import known_experts
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, all_rows, rows_of

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))


def test_messages_are_the_row_cut_where_its_masks_change() -> None:
    """What was sampled and is masked has no logprobs, which is how NeMo RL knows what to train; no message is empty."""
    for row in ROWS:
        log = message_log(row)
        masks, logprobs = [], []
        for message in log:
            check_fields("nemo_rl.message", message)
            tokens = len(message["token_ids"])
            assert tokens
            assert message["token_ids"].dtype == np.int64
            trained = message.get("generation_logprobs")
            assert trained is None or (message["role"] == "assistant" and trained.dtype == np.float32)
            masks.append(np.full(tokens, trained is not None, np.uint8))
            logprobs.append(np.zeros(tokens, np.float32) if trained is None else trained)
        np.testing.assert_array_equal(np.concatenate([message["token_ids"] for message in log]), row.token_ids)
        np.testing.assert_array_equal(np.concatenate(masks), row.loss_mask)
        np.testing.assert_array_equal(np.concatenate(logprobs), row.logprobs * row.loss_mask)
        roles = [message["role"] for message in log]
        assert all(one != other for one, other in pairwise(roles))
        assert "user" not in roles[1:]


def test_a_tokenizer_gives_the_text_of_messages() -> None:
    (row,) = rows_of(single_rows()[0])

    log = message_log(row, decode=lambda ids: " ".join(map(str, ids)))

    assert " ".join(message["content"] for message in log) == " ".join(map(str, row.token_ids.tolist()))


def test_records_have_a_completion_a_member_that_sampled_something() -> None:
    """Groups may be short; a member that sampled nothing is no completion, as a made-up token would be trained."""
    full = _same_prompt(ROLLOUTS[0], 3)
    short = _same_prompt(ROLLOUTS[1], 1)
    empty = replace(full[0], member=7, trajectory=replace(full[0].trajectory, segments=()))
    gone = replace(empty, group="gone")

    found = list(record_fields([*full, empty, *short, gone]))

    assert [len(record["completions"]) for record in found] == [3, 1]
    for record, members in zip(found, (full, short), strict=True):
        check_fields("nemo_rl.PromptGroupRecord", record)
        for completion, rollout in zip(record["completions"], members, strict=True):
            check_fields("nemo_rl.Completion", completion)
            assert (completion["reward"], completion["env_extras"]["job"]) == (rollout.reward, rollout.job)
            first = completion["message_log"][0]
            np.testing.assert_array_equal(first["token_ids"], record["prompt"][0]["token_ids"])


def test_records_of_several_segments_or_of_different_prompts_are_refused() -> None:
    """NeMo RL cuts the prompt of every completion at the record's length, and compares rows of equal prompts."""
    several = next(row.rollout for row in ROWS if row.number)
    mixed = [replace(rollout, group="one") for rollout in single_rows()[:2]]
    bare = next(row for row in ROWS if row.prompt_tokens == 0).rollout
    bare = replace(bare, trajectory=replace(bare.trajectory, segments=bare.trajectory.segments[:1]))

    for rollouts, why in (([several], "segments"), (mixed, "another prompt"), ([bare], "no prompt")):
        with pytest.raises(InvalidRequest, match=f"{why}: give it train_batch"):
            list(record_fields(rollouts))


def test_a_train_batch_is_all_rows_bit_for_bit() -> None:
    found = train_fields(ROLLOUTS, pad_id=5, advantages=True)

    batch = found.batch
    check_arrays("nemo_rl.train_batch", batch, N=len(ROWS), T=max(row.n_tokens for row in ROWS))
    for at, row in enumerate(ROWS):
        own = slice(row.n_tokens)
        np.testing.assert_array_equal(batch["input_ids"][at, own], row.token_ids)
        np.testing.assert_array_equal(batch["token_mask"][at, own], row.loss_mask)
        np.testing.assert_array_equal(batch["generation_logprobs"][at, own], row.logprobs * row.loss_mask)
        np.testing.assert_array_equal(batch["advantages"][at, own], row.advantages)
        assert (batch["input_ids"][at, row.n_tokens :] == 5).all()
        for name in ("token_mask", "generation_logprobs", "advantages"):
            assert not batch[name][at, row.n_tokens :].any()
    assert batch["input_lengths"].tolist() == [row.n_tokens for row in ROWS]
    assert batch["total_reward"].tolist() == [np.float32(row.rollout.reward) for row in ROWS]
    assert found.weight_versions == [row.versions[row.versions >= 0].min() for row in ROWS]


def test_losses_that_leave_out_the_first_column_meet_their_targets() -> None:
    """NeMo RL predicts `input_ids[:, 1:]` and takes `[:, 1:]` of masks and logprobs: neither may be shifted beforehand."""
    batch = train_fields(ROLLOUTS).batch

    for at, row in enumerate(ROWS):
        trained = np.flatnonzero(batch["token_mask"][at, 1:])
        np.testing.assert_array_equal(batch["input_ids"][at, 1:][trained], row.token_ids[1:][row.loss_mask[1:] == 1])
        np.testing.assert_array_equal(batch["generation_logprobs"][at, 1:][trained], row.segment.logprobs[1:][row.loss_mask[1:] == 1])


def test_rows_of_a_group_are_compared_with_one_another_and_named_apart() -> None:
    """A later segment begins with another prompt than the first; by that alone it would be a group of its own."""
    found = train_fields(ROLLOUTS)

    by_group: dict[str, set[bytes]] = {}
    for prompt, row in zip(found.batch["prompt_ids_for_adv"], ROWS, strict=True):
        by_group.setdefault(row.rollout.group, set()).add(prompt.tobytes())
    assert {len(prompts) for prompts in by_group.values()} == {1}
    assert len(set(found.sample_ids)) == len(ROWS)
    assert found.sample_ids[0] == f"{ROLLOUTS[0].group}_g{ROLLOUTS[0].member}"
    assert sum(name.rpartition("_g")[2].endswith("_t1") for name in found.sample_ids) == sum(
        len(rows_of(rollout)) > 1 for rollout in ROLLOUTS
    )


def test_datums_of_what_is_masked_have_no_loss() -> None:
    found = datum_specs(ROLLOUTS)

    assert len(found) == len(ROWS)
    for spec, row in zip(found, ROWS, strict=True):
        check_fields("nemo_rl.DatumSpec", spec)
        assert spec["length"] == sum(len(message["token_ids"]) for message in spec["message_log"])
        assert spec["loss_multiplier"] == float(row.loss_mask.any())
    assert {spec["loss_multiplier"] for spec in found} == {0.0, 1.0}


def test_experts_are_minus_one_where_none_are_known() -> None:
    """The last token of a row never went through the model; NeMo RL lets its own router decide where it finds -1."""
    rollouts = routed(ROLLOUTS[:12])
    rows = list(all_rows(rollouts))

    batch = train_fields(rollouts).batch

    check_arrays("nemo_rl.train_batch", batch, N=len(rows), T=max(row.n_tokens for row in rows), L=2, K=3)
    for found, row in zip(batch["routed_experts"], rows, strict=True):
        known = known_experts(row)
        np.testing.assert_array_equal(found[: len(known)], known)
        assert (found[len(known) :] == -1).all()
        assert (found[row.n_tokens - 1 :] == -1).all()
        log = message_log(row)
        np.testing.assert_array_equal(np.concatenate([message["routed_experts"] for message in log]), found[: row.n_tokens])


def test_nothing_sampled_is_no_row_and_bad_logprobs_are_refused() -> None:
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))
    segment = ROLLOUTS[0].trajectory.segments[0]
    bad = replace(segment, logprobs=np.full(len(segment.logprobs), np.nan, np.float32))

    assert train_fields([empty]).batch["input_ids"].shape == (0, 0)
    with pytest.raises(BadTrajectory, match="logprob of nan"):
        train_fields([replace(empty, trajectory=replace(empty.trajectory, segments=(bad,)))])
    with pytest.raises(InvalidRequest, match="GRPO"):
        train_fields([replace(empty, advantage=None)], advantages=True)


def test_with_nemo_rl_itself() -> None:
    pytest.importorskip("nemo_rl", reason="needs nemo_rl, which the environment of the tests does not have")
    records = prompt_group_records(_same_prompt(ROLLOUTS[0], 3))

    assert [len(record.completions) for record in records] == [3]
    assert train_batch(ROLLOUTS)["input_ids"].shape[0] == len(ROWS)


def _same_prompt(rollout: Rollout, members: int) -> list[Rollout]:
    """A group whose members begin with one prompt, as those of a run do."""
    singles = [each for each in single_rows() if rows_of(each)[0].prompt_tokens >= 3][:members]
    prompt = rows_of(singles[0])[0].token_ids[:3]
    return [
        replace(each, group=rollout.group, member=at, group_size=members, trajectory=_after(prompt, each.trajectory))
        for at, each in enumerate(singles)
    ]


def _after(prompt: np.ndarray, trajectory: Trajectory) -> Trajectory:
    (segment,) = trajectory.segments
    cut = int(np.flatnonzero(segment.sampled_mask)[0])
    return replace(
        trajectory,
        segments=(
            replace(
                segment,
                token_ids=np.concatenate([prompt, segment.token_ids[cut:]]),
                sampled_mask=np.concatenate([np.zeros(3, np.uint8), segment.sampled_mask[cut:]]),
                loss_mask=np.concatenate([np.zeros(3, np.uint8), segment.loss_mask[cut:]]),
                logprobs=np.concatenate([np.full(3, np.nan, np.float32), segment.logprobs[cut:]]),
                versions=(),
            ),
        ),
    )
