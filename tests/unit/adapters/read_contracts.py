"""Contracts that a person read in the sources of trainers: of what no package index has, and of what is no type.

Legend for array shapes: N rows, T tokens, P tokens of a prompt, A targets (T - 1).

`record_contracts.py` puts them among those that it asks packages for.
"""

from __future__ import annotations

from typing import Any

NEMO_RL = "NVIDIA-NeMo/RL"
READ: dict[str, dict[str, Any]] = {
    "areal.episode": {
        "version": "areal 1.0.4 areal/workflow/rlvr.py",
        "fields": {
            "input_ids": "int32 [N, T]",
            "loss_mask": "int32 [N, T]",
            "logprobs": "float32 [N, T]",
            "versions": "int32 [N, T]",
            "attention_mask": "bool [N, T]",
            "rewards": "float32 [N]",
        },
        "optional": [],
    },
    "prime_rl.TrainingSample": {
        "version": "PrimeIntellect-ai/prime-rl of 2026-08-21 src/prime_rl/transport/types.py",
        "fields": {
            "token_ids": "list[int]",
            "mask": "list[bool]",
            "logprobs": "list[float]",
            "temperatures": "list[float]",
            "env_name": "str",
            "ref_logprobs": "list[float] | None",
            "mm_kwargs": "dict[str, EncodedTensor] | None",
            "routed_experts": "RoutedExperts | None",
            "mm_token_type_ids": "list[int] | None",
            "rl_weights": "list[float] | None",
            "ce_weights": "list[float] | None",
            "ref_kl_weights": "list[float] | None",
            "advantages": "list[float] | None",
        },
        "optional": [
            "ref_logprobs",
            "mm_kwargs",
            "routed_experts",
            "mm_token_type_ids",
            "rl_weights",
            "ce_weights",
            "ref_kl_weights",
            "advantages",
        ],
    },
    "rllm.Step": {
        "version": "rllm-org/rllm 1da008503d2a rllm/agents/agent.py",
        "fields": {
            "prompt_ids": "list[int] | list[Any]",
            "response_ids": "list[int]",
            "logprobs": "list[float]",
            "routing_matrices": "list[str] | None",
            "chat_completions": "list[dict[str, str]]",
            "observation": "Any",
            "thought": "str",
            "action": "Any",
            "model_response": "str",
            "model_output": "ModelOutput | None",
            "info": "dict",
            "reward": "float",
            "done": "bool",
            "mc_return": "float",
            "advantage": "list[float] | float | None",
            "weight_version": "int | None",
        },
        "optional": [
            "routing_matrices",
            "chat_completions",
            "observation",
            "thought",
            "action",
            "model_response",
            "model_output",
            "info",
            "mc_return",
            "advantage",
            "weight_version",
        ],
    },
    "rllm.Trajectory": {
        "version": "rllm-org/rllm 1da008503d2a rllm/agents/agent.py",
        "fields": {"uid": "str", "name": "str", "task": "Any", "steps": "list[Step]", "reward": "float | None", "info": "dict"},
        "optional": ["info"],
    },
    "rllm.Episode": {
        "version": "rllm-org/rllm 1da008503d2a rllm/agents/agent.py",
        "fields": {
            "id": "str",
            "task": "Any",
            "termination_reason": "TerminationReason | None",
            "is_correct": "bool",
            "trajectories": "list[Trajectory]",
            "metrics": "dict",
            "info": "dict",
        },
        "optional": ["metrics", "info"],
    },
    "slime.Sample": {
        "version": "THUDM/slime 22cdc6e1 slime/utils/types.py",
        "fields": {
            "group_index": "int | None",
            "index": "int | None",
            "rollout_id": "int | None",
            "prompt": "str | list[dict[str, str]]",
            "tokens": "list[int]",
            "response": "str",
            "response_length": "int",
            "label": "str | None",
            "reward": "float | dict[str, Any] | None",
            "loss_mask": "list[int] | None",
            "weight_versions": "list[str]",
            "rollout_log_probs": "list[float] | None",
            "rollout_routed_experts": "list[list[int]] | torch.Tensor | None",
            "remove_sample": "bool",
            "status": "Status",
            "metadata": "dict",
            "train_metadata": "dict | None",
            "session_id": "str | None",
        },
        "optional": ["label", "rollout_routed_experts", "remove_sample", "train_metadata", "session_id"],
    },
    "nemo_rl.Completion": {
        "version": f"{NEMO_RL} 0d8b98c501ca nemo_rl/experience/interfaces.py",
        "fields": {
            "message_log": "LLMMessageLogType | VLMMessageLogType",
            "env_extras": "Optional[dict[str, Any]]",
            "truncated": "bool",
            "reward": "float",
            "logprobs_valid": "bool",
        },
        "optional": ["logprobs_valid"],
    },
    "nemo_rl.PromptGroupRecord": {
        "version": f"{NEMO_RL} 0d8b98c501ca nemo_rl/experience/interfaces.py",
        "fields": {
            "prompt_idx": "int",
            "prompt": "LLMMessageLogType | VLMMessageLogType",
            "extra_env_info": "Optional[dict[str, Any]]",
            "metadata": "dict[str, Any]",
            "completions": "list[Completion]",
            "rollout_metrics": "dict[str, Any]",
            "loss_multiplier": "float",
        },
        "optional": ["loss_multiplier"],
    },
    "nemo_rl.DatumSpec": {
        "version": f"{NEMO_RL} 0406a6414d1a nemo_rl/data/interfaces.py",
        "fields": {
            "message_log": "LLMMessageLogType | VLMMessageLogType",
            "length": "int",
            "extra_env_info": "Optional[dict[str, Any]]",
            "loss_multiplier": "float",
            "idx": "int",
            "task_name": "str",
            "stop_strings": "list[str]",
        },
        "optional": ["task_name", "stop_strings"],
    },
    "nemo_rl.message": {
        "version": f"{NEMO_RL} 032482d677c0 nemo_rl/data/llm_message_utils.py",
        "fields": {"role": "str", "content": "str", "token_ids": "int64 [T]", "generation_logprobs": "float32 [T]"},
        "optional": ["generation_logprobs"],
    },
    "nemo_rl.train_batch": {
        "version": f"{NEMO_RL} 07074bc608e5 nemo_rl/experience/payload.py",
        "fields": {
            "input_ids": "int64 [N, T]",
            "input_lengths": "int32 [N]",
            "generation_logprobs": "float32 [N, T]",
            "token_mask": "int64 [N, T]",
            "sample_mask": "float32 [N]",
            "prompt_ids_for_adv": "int64 [N, P]",
            "mask_sample": "bool [N]",
            "truncated": "bool [N]",
            "total_reward": "float32 [N]",
            "advantages": "float32 [N, T]",
            "routed_experts": "integer [N, T, layers, topk]",
        },
        "optional": ["advantages", "routed_experts"],
    },
    "openrlhf.executor": {
        "version": "openrlhf 0.11.2 openrlhf/utils/agent.py, what MultiTurnAgentExecutor.execute returns",
        "fields": {
            "prompt": "str",
            "label": "str",
            "images": "list | None",
            "mm_train_inputs": "dict | None",
            "reward": "float",
            "scores": "float",
            "observation_tokens": "list[int] [T]",
            "action_ranges": "list[tuple[int, int]]",
            "rollout_log_probs": "list[float] [T]",
            "truncated": "bool",
            "extra_logs": "dict[str, float]",
        },
        "optional": [],
    },
    "tinker.importance_sampling": {
        "version": "tinker 0.38.0 tinker/types/datum.py; tinker-cookbook 0f838c0d7d54 tinker_cookbook/rl/data_processing.py",
        "fields": {
            "target_tokens": "int64 [A]",
            "logprobs": "float32 [A]",
            "advantages": "float32 [A]",
            "mask": "float32 [A]",
        },
        "optional": ["mask"],
    },
}
"""Name here: what a person read, where."""

__all__ = ["READ"]
