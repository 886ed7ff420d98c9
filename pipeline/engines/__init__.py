"""Inference engines over HTTP, as far as both a trainer and a worker speak with them: connections, errors, control.

    Exchange, errors              one HTTP exchange, and what can go wrong (`exchange.py`, `errors.py`)
    EngineControl, Health, ...    pause, label, flush, look (`control.py`), of vLLM (`vllm.py`) and SGLang (`sglang.py`)
    connect_control, engine_kind  which kind is there, found by asking (`connect.py`)

HTTP itself is in `connections.py` and `answers.py`; generation is the workers' (`workers/llm`). A trainer loads this with its first update.
"""

from pipeline.engines.connect import connect_control, engine_kind
from pipeline.engines.control import EngineControl, EngineKind, Health, PauseMode
from pipeline.engines.errors import InvalidResponse, ModelError, Overlong, Refused, Retryable, Unsupported
from pipeline.engines.exchange import Exchange
from pipeline.engines.sglang import SglangControl
from pipeline.engines.vllm import VllmControl

__all__ = [
    "EngineControl",
    "EngineKind",
    "Exchange",
    "Health",
    "InvalidResponse",
    "ModelError",
    "Overlong",
    "PauseMode",
    "Refused",
    "Retryable",
    "SglangControl",
    "Unsupported",
    "VllmControl",
    "connect_control",
    "engine_kind",
]
