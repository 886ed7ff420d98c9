"""A logits processor that makes a model say what a request dictates: a test double inside a real vLLM server.

    rollstream llm serve --scripted ...     loads it (`--logits-processors scripted_logits:ScriptedLogits`)
    /inference/v1/generate                  sampling_params.extra_args = {"script": [ids], "delay_ms": 5}
    /v1/completions                         vllm_xargs = {"script": [ids], "delay_ms": 5}

The ids of the script come one by one, then the model's end token; every other token is made impossible, so the processed logprob of a
scripted token is 0 and the raw one is the model's own. `delay_ms` slows each step, since a tiny model is done before a test can look.
These are the arguments that the scripted server takes, so one suite of tests runs on both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    import torch
    from vllm import SamplingParams
    from vllm.config import VllmConfig

NOTHING = float("-inf")


class ScriptedLogits(AdapterLogitsProcessor):
    """Built by vLLM, once a worker."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        end = vllm_config.model_config.hf_config.eos_token_id
        self._end_id = int(end[0] if isinstance(end, list) else end)

    def is_argmax_invariant(self) -> bool:
        """The most probable token changes."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[[Sequence[int], torch.Tensor], torch.Tensor] | None:
        """What to do with the logits of one request; None where it dictates nothing."""
        extra = params.extra_args or {}
        script = extra.get("script")
        delay_s = float(extra.get("delay_ms") or 0) / 1000
        if script is None and not delay_s:
            return None
        ids = None if script is None else [int(id_) for id_ in script]

        def force(output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            if delay_s:
                time.sleep(delay_s)
            if ids is not None:
                place = len(output_ids)
                id_ = ids[place] if place < len(ids) else self._end_id
                kept = logits[id_].clone()
                logits.fill_(NOTHING)
                logits[id_] = kept
            return logits

        return force
