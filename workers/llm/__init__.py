"""Inference servers: ids in, ids and logprobs out.

    Backend, GenRequest, GenResult, Span, Caps, Health   the protocol and its records (`backend.py`)
    ModelError, Overlong, Retryable, Refused, InvalidResponse   what can go wrong (`errors.py`)
    VllmBackend       a vLLM server, every wire shape from 0.31 on (`vllm.py`)
    scripted          a server of our own that speaks vLLM's wire (package)
    tokenizer         text to ids and back (package)

`vllm_wire.py` builds and reads bodies, `validate.py` decides what is believed, `exchange.py` speaks HTTP, `chatml.py` holds the fixed
texts of the ChatML family. Nothing here knows Redis.
"""

from workers.llm.backend import Backend, Caps, Finish, GenRequest, GenResult, Health, PauseMode, Span
from workers.llm.errors import InvalidResponse, ModelError, Overlong, Refused, Retryable
from workers.llm.vllm import VllmBackend

__all__ = [
    "Backend",
    "Caps",
    "Finish",
    "GenRequest",
    "GenResult",
    "Health",
    "InvalidResponse",
    "ModelError",
    "Overlong",
    "PauseMode",
    "Refused",
    "Retryable",
    "Span",
    "VllmBackend",
]
