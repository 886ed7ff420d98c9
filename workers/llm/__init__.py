"""Inference servers: ids in, ids and logprobs out.

    Backend, GenRequest, GenResult, Span, Caps   the protocol and its records (`backend.py`)
    VllmBackend       a vLLM server, every wire shape from 0.31 on (`vllm.py`)
    scripted          a server of our own that speaks vLLM's wire (package)
    tokenizer         text to ids and back (package)

`vllm_wire.py` builds and reads bodies, `validate.py` decides what is believed, `chatml.py` holds the fixed texts of the ChatML family.
HTTP, its errors and the control of engines are in `pipeline/engines`, since trainers need them too. Nothing here knows Redis.
"""

from workers.llm.backend import Backend, Caps, Finish, GenRequest, GenResult, Span
from workers.llm.vllm import VllmBackend

__all__ = [
    "Backend",
    "Caps",
    "Finish",
    "GenRequest",
    "GenResult",
    "Span",
    "VllmBackend",
]
