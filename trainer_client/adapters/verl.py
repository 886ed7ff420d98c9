"""Rollouts for verl: outputs of its agent loops, its batches (`DataProto`), and rows of its TransferQueue.

Made for verl 0.9. Each segment that was sampled is one output; the prompt is what stands before its first sampled token, the response is
the rest, observations with mask 0 among it. `response_mask` is what is trained.

verl computes GRPO's statistics over rows of one `uid`, which is not what is meant where a trajectory has several. Its TransferQueue trainer
takes the last row of each session, so give it rows (`queue_rows`); for the other, `data_fields(advantages=True)` brings advantages along.

Where rollouts were read with routed experts each form has `routed_experts` of int16, a row of zeros for each token that has none: padding,
the last token of a row, and an observation after its last turn.

Where rows have images, outputs of agent loops have them in `multi_modal_data`, from which verl makes pixels and positions by its processor.
Its batches and its queue have both already, so `data_fields` and `queue_rows` refuse rows with images.

Legend for array shapes: B rows, P tokens of the longest prompt, R of the longest response, L layers with experts, K experts a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidRequest
from trainer_client.adapters.demands import have_experts, text_rows
from trainer_client.batches.experts import experts_of, known_experts
from trainer_client.batches.images import contents
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, Row, rows_of, turn_ends

if TYPE_CHECKING:
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput


Decode = Callable[[bytes], Any]
"""An image of its file, as verl's processor takes it: `lambda file: Image.open(io.BytesIO(file))` of PIL."""


def agent_loop_outputs(rollout: Rollout, *, decode: Decode | None = None) -> list[AgentLoopOutput]:
    """What the agent loop of one session returns: `output_fields` as verl's own type. Empty where nothing was sampled."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    return [
        AgentLoopOutput(**{**fields, "metrics": AgentLoopMetrics(**fields["metrics"])}) for fields in output_fields(rollout, decode=decode)
    ]


def output_fields(rollout: Rollout, *, decode: Decode | None = None) -> list[dict[str, Any]]:
    """Fields of an `AgentLoopOutput` a segment, as plain lists; `routed_experts` is an array [T - 1, L, K], for T tokens of prompt and
    response. Logprobs are 0 where nothing was sampled.

    Args:
        decode: makes an image of its file; needed where rows have images. Reading those blocks.

    Raises:
        InvalidRequest: there are images, and nobody says how they are decoded.
        BadTrajectory: one must not be trained on.
        BlobError: an image cannot be had.
    """
    found = []
    for row in rows_of(rollout):
        output = _output(row)
        if row.experts is not None:
            output["routed_experts"] = _experts(row)
        if row.images:
            if decode is None:
                raise InvalidRequest(f"{rollout.job} has images: expected how a file becomes an image: pass decode", field="decode")
            output["multi_modal_data"] = {"images": [decode(file) for file in contents(row.images)]}
        found.append(output)
    return found


@dataclass(frozen=True, slots=True)
class DataFields:
    """What a `DataProto` is made of, as arrays."""

    batch: Mapping[str, NDArray[Any]]
    """`prompts` int64 [B, P], padded on the left; `responses` int64 [B, R], on the right; `response_mask` int64 [B, R]; `input_ids`,
    `attention_mask`, `position_ids` int64 [B, P + R]; `rollout_log_probs` float32 [B, R]; `rm_scores` float32 [B, R], the reward on the
    last token of each response; with advantages, `advantages` and `returns` float32 [B, R]; with routed experts, `routed_experts` int16
    [B, P + R, L, K]."""
    non_tensor_batch: Mapping[str, NDArray[Any]]
    """Shape [B]: `uid` (the group), `__num_turns__`, components of the reward, and what verl keeps of versions and turns."""
    meta_info: Mapping[str, Any]


def data_proto(rollouts: Sequence[Rollout], *, pad_id: int = 0, advantages: bool = False) -> DataProto:
    """`data_fields` as verl's own type."""
    import torch
    from verl import DataProto

    fields = data_fields(rollouts, pad_id=pad_id, advantages=advantages)
    tensors = {name: torch.from_numpy(array) for name, array in fields.batch.items()}
    return DataProto.from_dict(tensors=tensors, non_tensors=dict(fields.non_tensor_batch), meta_info=dict(fields.meta_info))


def data_fields(rollouts: Sequence[Rollout], *, pad_id: int = 0, advantages: bool = False) -> DataFields:
    """A batch of all rows of some rollouts, in order.

    Args:
        pad_id: token that fills up.
        advantages: whether the rollouts' own are in it, a row as its trajectory; 0 outside `response_mask`.
    """
    rows = [row for rollout in rollouts for row in text_rows(rollout, BATCHES)]
    prompts = max((row.prompt_tokens for row in rows), default=0)
    responses = max((row.n_tokens - row.prompt_tokens for row in rows), default=0)
    shape = (len(rows), prompts + responses)
    input_ids = np.full(shape, pad_id, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    wide: dict[str, NDArray[Any]] = {
        "response_mask": np.zeros((len(rows), responses), np.int64),
        "rollout_log_probs": np.zeros((len(rows), responses), np.float32),
        "rm_scores": np.zeros((len(rows), responses), np.float32),
    }
    if advantages:
        wide["advantages"] = np.zeros((len(rows), responses), np.float32)
    for b, row in enumerate(rows):
        start, length = prompts - row.prompt_tokens, row.n_tokens - row.prompt_tokens
        own, response = (b, slice(start, start + row.n_tokens)), (b, slice(length))
        input_ids[own] = row.token_ids
        attention_mask[own] = 1
        wide["response_mask"][response] = row.loss_mask[row.prompt_tokens :]
        wide["rollout_log_probs"][response] = row.logprobs[row.prompt_tokens :]
        wide["rm_scores"][b, length - 1] = row.rollout.reward
        if advantages:
            wide["advantages"][response] = row.advantages[row.prompt_tokens :]
    if advantages:
        wide["returns"] = wide["advantages"]
    batch = {
        "prompts": input_ids[:, :prompts],
        "responses": input_ids[:, prompts:],
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": np.maximum(attention_mask.cumsum(axis=1) - 1, 0),
        **wide,
    }
    if have_experts(rows):
        batch["routed_experts"] = np.zeros((*shape, *known_experts(rows[0]).shape[1:]), np.int16)
        for b, row in enumerate(rows):
            known = _experts(row)
            start = prompts - row.prompt_tokens
            batch["routed_experts"][b, start : start + len(known)] = known
    outputs = [_output(row) for row in rows]
    names = sorted({name for rollout in rollouts for name in rollout.components})
    extra = [{key: output["extra_fields"].get(key) for key in EXTRA} for output in outputs]
    loose: dict[str, list[object]] = {
        "uid": [row.rollout.group for row in rows],
        "job": [row.rollout.job for row in rows],
        **{key: [fields[key] for fields in extra] for key in EXTRA},
        **{name: [row.rollout.components.get(name, np.nan) for row in rows] for name in names},
    }
    return DataFields(
        batch=batch,
        non_tensor_batch={
            "__num_turns__": np.array([output["num_turns"] for output in outputs], np.int32),
            **{name: _objects(values) for name, values in loose.items()},
        },
        meta_info={"metrics": [output["metrics"] for output in outputs], "reward_extra_keys": names},
    )


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One key of verl's TransferQueue."""

    key: str
    """`<uid>_<session>_<index>` of a row; `<uid>` of a prompt."""
    fields: Mapping[str, NDArray[Any] | object]
    """Arrays of one dimension without padding, and plain values; empty of a prompt."""
    tag: Mapping[str, object]


def queue_rows(rollouts: Sequence[Rollout], *, global_steps: int) -> list[QueueRow]:
    """Rows for TransferQueue in an order in which they may be put: those of a group, and then its prompt, as `finished`.

    The trainer takes a group when its prompt says so, so the prompt comes last. The session is the member's number, the index the row's.

    Args:
        global_steps: of the step that the prompts were drawn for.
    """
    found: list[QueueRow] = []
    for at, rollout in enumerate(rollouts):
        uid = _key(rollout.group)
        for index, row in enumerate(text_rows(rollout, BATCHES)):
            output = _output(row)
            prompt, response = row.prompt_tokens, row.n_tokens - row.prompt_tokens
            ids = row.token_ids.astype(np.int64)
            mask = row.loss_mask[prompt:].astype(np.int64)
            fields = {
                "prompts": ids[:prompt],
                "responses": ids[prompt:],
                "input_ids": ids,
                "position_ids": np.arange(row.n_tokens, dtype=np.int64),
                "response_mask": mask,
                "loss_mask": mask,
                "rollout_log_probs": row.logprobs[prompt:],
                "uid": uid,
                **{name: output[name] for name in ("reward_score", "num_turns", "metrics", "extra_fields")},
            }
            if row.experts is not None:
                fields["routed_experts"] = np.concatenate([_experts(row), np.zeros((1, *row.experts.shape[1:]), np.int16)])
            tag = {
                "status": "success",
                "prompt_len": prompt,
                "response_len": response,
                "seq_len": row.n_tokens,
                "global_steps": global_steps,
                "min_global_steps": output["extra_fields"]["min_global_steps"],
                "max_global_steps": output["extra_fields"]["max_global_steps"],
            }
            found.append(QueueRow(f"{uid}_{rollout.member}_{index}", fields, tag))
        if at + 1 == len(rollouts) or rollouts[at + 1].group != rollout.group:
            found.append(QueueRow(uid, {}, {"is_prompt": True, "status": "finished", "global_steps": global_steps}))
    return found


BATCHES = "verl's batches and queue"
EXTRA = ("turn_scores", "tool_rewards", "min_global_steps", "max_global_steps", "extras")
"""Extra fields that every row of verl's has."""


def _output(row: Row) -> dict[str, Any]:
    rollout, at = row.rollout, row.prompt_tokens
    turns = rollout.trajectory.turns
    versions = row.versions[row.versions >= 0]
    return {
        "prompt_ids": row.token_ids[:at].tolist(),
        "response_ids": row.token_ids[at:].tolist(),
        "response_mask": row.loss_mask[at:].tolist(),
        "response_logprobs": row.logprobs[at:].tolist(),
        "reward_score": rollout.reward,
        "num_turns": 2 * len(turn_ends(rollout, row.number)),
        "metrics": {
            "generate_sequences": sum(turn.model_s for turn in turns),
            "tool_calls": sum(turn.tools_s for turn in turns),
            "compute_score": float(rollout.seconds.get("eval", 0.0)),
        },
        "extra_fields": {
            "min_global_steps": int(versions.min()) if len(versions) else None,
            "max_global_steps": int(versions.max()) if len(versions) else None,
            "turn_scores": list(rollout.turn_rewards),
            "tool_rewards": [],
            "reward_extra_info": dict(rollout.components),
        },
    }


def _experts(row: Row) -> NDArray[np.int16]:
    """int16, shape [T - 1, L, K]."""
    found = experts_of(row)
    if found.size and found.max() > np.iinfo(np.int16).max:
        raise BadTrajectory(row.rollout.job, f"expert {found.max()} does not fit into the 16 bits with a sign that verl has for it")
    return found.astype(np.int16)


def _objects(values: Sequence[object]) -> NDArray[Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _key(group: str) -> str:
    """A group's id without the character that separates the parts of a key."""
    return group.replace("_", "-")


__all__ = ["DataFields", "QueueRow", "agent_loop_outputs", "data_fields", "data_proto", "output_fields", "queue_rows"]
