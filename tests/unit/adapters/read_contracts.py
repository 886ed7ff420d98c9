"""Contracts that a person read in the sources of trainers: of what no package index has, and of what is no type.

Legend for array shapes: N rows, T tokens, P tokens of a prompt, A targets (T - 1).

`record_contracts.py` puts them among those that it asks packages for.
"""

from __future__ import annotations

from typing import Any

NEMO_RL = "NVIDIA-NeMo/RL"
READ: dict[str, dict[str, Any]] = {
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
