"""Inference servers: ids in, ids and logprobs out.

    Backend, GenRequest, GenResult, Span, Caps   the protocol and its records (`backend.py`)
    connect_backend   a server of either kind, found by asking (`connect.py`); gives an HttpBackend (`http_backend.py`)
    scripted          a server of our own that speaks the wires of vLLM and of SGLang (package)
    tokenizer         text to ids and back (package)

What a server can do and how it is asked is a `Wire` (`wire.py`, `vllm.py`, `sglang.py`); `vllm_wire.py` and `sglang_wire.py` build and
read bodies, `validate.py` decides what is believed, `calls.py` is what calls of all kinds share. `chatml.py` and `llama3.py` hold the fixed
texts of their families.
Whether recorded logprobs are those of a server's weights is asked by `teacher_forcing.py` (`scoring_plan.py`, `scoring_wire.py`) and judged
by `logprob_distance.py`; `ratio.py` says which records bias a trainer's ratio.
HTTP, its errors and the control of engines are in `pipeline/engines`, since trainers need them too. Nothing here knows Redis.
"""

from workers.llm.backend import Backend, Caps, Finish, GenRequest, GenResult, Span
from workers.llm.connect import connect_backend
from workers.llm.http_backend import HttpBackend

__all__ = [
    "Backend",
    "Caps",
    "Finish",
    "GenRequest",
    "GenResult",
    "HttpBackend",
    "Span",
    "connect_backend",
]
