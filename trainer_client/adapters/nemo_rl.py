"""Rollouts for NeMo RL: message logs, records of prompt groups, `DatumSpec`s, and train batches.

Made for the fields that NeMo RL had in autumn 2026; it is installed from its repository alone. A message log is one segment, cut where its
masks change. NeMo RL trains the messages that have `generation_logprobs`, so what was sampled and is not trained comes without them, and a
log has no empty message. Masks and logprobs of a train batch speak of the token that they stand at; NeMo RL's losses take `[:, 1:]` of them
to meet the targets `input_ids[:, 1:]`, so the first token of a segment has no loss.

NeMo RL compares rows that have the same prompt. In a record the completions of a group therefore begin with one prompt, one row each. A
train batch takes any rollouts: all rows of a group have the prompt of its first in `prompt_ids_for_adv`. Where trajectories have several
rows its own statistics would count those, so `advantages=True` brings ours.

Where rollouts were read with routed experts, each message and the batch have `routed_experts`; -1 stands where none are known, as NeMo RL
has it: on the last token of a row, on an observation at its end, and behind its end.

Legend for array shapes: N rows, T tokens of the longest, P tokens of the longest prompt, L layers, K experts a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidRequest
from trainer_client.adapters.demands import advantage_of, have_experts, text_rows, was_cut_off
from trainer_client.adapters.trl import group_number
from trainer_client.batches.experts import known_experts
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row

if TYPE_CHECKING:
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.experience.interfaces import PromptGroupRecord

Decode = Callable[[list[int]], str]
"""Text of some tokens, as `tokenizer.decode`."""
Message = dict[str, Any]


def message_log(row: Row, *, decode: Decode | None = None) -> list[Message]:
    """The messages of one row, which follow on one another without a gap.

    Each has `role` (`user` before the first sampled token, then `assistant` and `environment`), `content`, and `token_ids`, int64; of what
    is trained also `generation_logprobs`, float32; with routed experts `routed_experts`, int32, shape [tokens, L, K].

    Args:
        decode: for `content`, which NeMo RL logs and does not train; None = no text.
    """
    ids = row.token_ids.astype(np.int64)
    logprobs = row.logprobs
    experts = None if row.experts is None else _experts(row, row.n_tokens)
    found = []
    for start, end in _runs(row):
        sampled = bool(row.sampled_mask[start])
        role = "assistant" if sampled else "environment" if start >= row.prompt_tokens else "user"
        text = "" if decode is None else decode(ids[start:end].tolist())
        message: Message = {"role": role, "content": text, "token_ids": ids[start:end]}
        if row.loss_mask[start]:
            message["generation_logprobs"] = logprobs[start:end]
        if experts is not None:
            message["routed_experts"] = experts[start:end]
        found.append(message)
    return found


def record_fields(rollouts: Sequence[Rollout], *, decode: Decode | None = None) -> Iterator[dict[str, Any]]:
    """What a `PromptGroupRecord` of each group has, with fields of `Completion`s in it; a group may be short of members.

    A member without a sampled token is no completion, and a group of none is no record. Members that are masked have no
    `generation_logprobs`, and so no loss, and their reward counts.

    Raises:
        InvalidRequest: a trajectory has several segments, or those of a group begin with different prompts, or with none.
        BadTrajectory: one must not be trained on.
    """
    for group, members in groupby(rollouts, key=lambda rollout: rollout.group):
        rows = [row for rollout in members for row in _only(rollout)]
        if not rows:
            continue
        rollout = rows[0].rollout
        prompt = _prompt(rows[0])
        for row in rows:
            if not len(prompt) or not np.array_equal(_prompt(row), prompt):
                raise _refused(f"{row.rollout.job} begins with {'another' if len(prompt) else 'no'} prompt")
        completions = []
        for row in rows:
            extras = {"job": row.rollout.job, **row.rollout.components}
            log = message_log(row, decode=decode)
            completions.append(
                {"message_log": log, "env_extras": extras, "truncated": was_cut_off(row.rollout), "reward": row.rollout.reward}
            )
        yield {
            "prompt_idx": group_number(rollout.prompt_id),
            "prompt": message_log(rows[0], decode=decode)[:1],
            "extra_env_info": dict(rollout.data),
            "metadata": {"group": group, "rollout_environment": rollout.task or "unknown"},
            "completions": completions,
            "rollout_metrics": {},
            "loss_multiplier": 1.0,
        }


def prompt_group_records(rollouts: Sequence[Rollout], *, decode: Decode | None = None) -> list[PromptGroupRecord]:
    """`record_fields` as NeMo RL's own types, with tensors."""
    from nemo_rl.experience.interfaces import Completion, PromptGroupRecord

    found = []
    for fields in record_fields(rollouts, decode=decode):
        completions = [Completion(**{**each, "message_log": tensors(each["message_log"])}) for each in fields["completions"]]
        found.append(PromptGroupRecord(**{**fields, "prompt": tensors(fields["prompt"]), "completions": completions}))
    return found


def datum_specs(rollouts: Sequence[Rollout], *, decode: Decode | None = None) -> list[dict[str, Any]]:
    """A `DatumSpec` a row, with arrays (`tensors` makes their logs tensors). `loss_multiplier` is 0 where nothing is trained."""
    return [
        {
            "message_log": message_log(row, decode=decode),
            "length": row.n_tokens,
            "extra_env_info": dict(row.rollout.data),
            "loss_multiplier": float(row.loss_mask.any()),
            "idx": idx,
            "task_name": row.rollout.task,
        }
        for idx, row in enumerate(_rows(rollouts))
    ]


def tensors(log: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A message log with tensors in place of arrays; nothing is copied."""
    import torch

    return [
        {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in message.items()} for message in log
    ]


@dataclass(frozen=True, slots=True)
class TrainFields:
    """A train batch, and what its rows are called in NeMo RL's TransferQueue."""

    batch: Mapping[str, NDArray[Any]]
    """`input_ids` int64 [N, T], padded on the right; `input_lengths` int32 [N]; `token_mask` int64 [N, T], 1 on what is trained;
    `generation_logprobs` float32 [N, T], 0 elsewhere; `sample_mask` float32 [N], 1; `mask_sample` and `truncated` bool [N];
    `prompt_ids_for_adv` int64 [N, P], equal in a group; `total_reward` float32 [N]; with advantages, `advantages` float32 [N, T];
    with routed experts, `routed_experts` int32 [N, T, L, K]."""
    sample_ids: list[str]
    """`<group>_g<member>`, of a trajectory's further rows with `_t<row>` behind it."""
    weight_versions: list[int]
    """Of each row the number of its oldest version; -1 = not known."""


def train_batch(rollouts: Sequence[Rollout], *, pad_id: int = 0, advantages: bool = False) -> BatchedDataDict[Any]:
    """The batch of `train_fields` as NeMo RL's own type, with tensors."""
    import torch
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    fields = train_fields(rollouts, pad_id=pad_id, advantages=advantages)
    return BatchedDataDict({name: torch.from_numpy(array) for name, array in fields.batch.items()})


def train_fields(rollouts: Sequence[Rollout], *, pad_id: int = 0, advantages: bool = False) -> TrainFields:
    """All rows of some rollouts, in order.

    Args:
        rollouts: the members of a group stand together.
        pad_id: token that stands after the end of a row.
        advantages: whether the rollouts' own are in it, a row as its trajectory.

    Raises:
        InvalidRequest: advantages are asked for and a rollout has none.
        BadTrajectory: one must not be trained on.
    """
    if advantages:
        for rollout in rollouts:
            advantage_of(rollout)
    rows = list(_rows(rollouts))
    prompts: dict[str, NDArray[Any]] = {}
    for row in rows:
        prompts.setdefault(row.rollout.group, _prompt(row))
    shape = (len(rows), max((row.n_tokens for row in rows), default=0))
    batch: dict[str, NDArray[Any]] = {
        "input_ids": np.full(shape, pad_id, np.int64),
        "input_lengths": np.array([row.n_tokens for row in rows], np.int32),
        "token_mask": np.zeros(shape, np.int64),
        "generation_logprobs": np.zeros(shape, np.float32),
        "sample_mask": np.ones(len(rows), np.float32),
        "mask_sample": np.zeros(len(rows), np.bool_),
        "truncated": np.array([was_cut_off(row.rollout) for row in rows], np.bool_),
        "prompt_ids_for_adv": np.full((len(rows), max(map(len, prompts.values()), default=0)), pad_id, np.int64),
        "total_reward": np.array([row.rollout.reward for row in rows], np.float32),
    }
    if advantages:
        batch["advantages"] = np.zeros(shape, np.float32)
    for at, row in enumerate(rows):
        tokens, prompt = row.n_tokens, prompts[row.rollout.group]
        batch["input_ids"][at, :tokens] = row.token_ids
        batch["token_mask"][at, :tokens] = row.loss_mask
        batch["generation_logprobs"][at, :tokens] = row.logprobs * row.loss_mask
        batch["prompt_ids_for_adv"][at, : len(prompt)] = prompt
        if advantages:
            row.fill_advantages(batch["advantages"][at, :tokens])
    if have_experts(rows):
        batch["routed_experts"] = np.stack([_experts(row, shape[1]) for row in rows])
    return TrainFields(batch=batch, sample_ids=list(_sample_ids(rollouts)), weight_versions=[_oldest(row) for row in rows])


def _rows(rollouts: Sequence[Rollout]) -> Iterator[Row]:
    for rollout in rollouts:
        yield from text_rows(rollout, "NeMo RL")


def _experts(row: Row, tokens: int) -> NDArray[Any]:
    """Shape [tokens, L, K]; -1 where none are known."""
    known = known_experts(row)
    found = np.full((tokens, *known.shape[1:]), -1, np.int32)
    found[: len(known)] = known
    return found


def _runs(row: Row) -> Iterator[tuple[int, int]]:
    """Stretches in which neither mask changes."""
    kind = row.sampled_mask + row.loss_mask
    edges = (np.flatnonzero(np.diff(kind)) + 1).tolist()
    return pairwise([0, *edges, len(kind)])


def _only(rollout: Rollout) -> list[Row]:
    rows = text_rows(rollout, "NeMo RL")
    if len(rows) > 1:
        raise _refused(f"{rollout.job} has {len(rows)} segments")
    return rows


def _refused(what: str) -> InvalidRequest:
    why = (
        f"expected one row a trajectory and one prompt a group, as NeMo RL's records have, but {what}: give it train_batch(advantages=True)"
    )
    return InvalidRequest(why, field="rollouts")


def _prompt(row: Row) -> NDArray[Any]:
    return row.token_ids[: row.prompt_tokens]


def _sample_ids(rollouts: Sequence[Rollout]) -> Iterator[str]:
    for rollout in rollouts:
        for at in range(len(text_rows(rollout, "NeMo RL"))):
            yield f"{rollout.group}_g{rollout.member}" + (f"_t{at}" if at else "")


def _oldest(row: Row) -> int:
    known = row.versions[row.versions >= 0]
    return int(known.min()) if len(known) else -1


__all__ = [
    "TrainFields",
    "datum_specs",
    "message_log",
    "prompt_group_records",
    "record_fields",
    "tensors",
    "train_batch",
    "train_fields",
]
