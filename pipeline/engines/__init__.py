"""Inference engines over HTTP, as far as both a trainer and a worker speak with them: connections, errors, control.

    Exchange, errors              one HTTP exchange, and what can go wrong (`exchange.py`, `errors.py`)
    EngineControl, Health, ...    pause, label, flush, look (`control.py`), of a vLLM server (`vllm.py`)

Generation is the workers' (`workers/llm`). Needs aiohttp, which the base does not bring: a trainer loads this when it first needs it.
"""

from pipeline.engines.control import EngineControl, Health, PauseMode
from pipeline.engines.errors import InvalidResponse, ModelError, Overlong, Refused, Retryable
from pipeline.engines.exchange import Exchange
from pipeline.engines.vllm import VllmControl

__all__ = [
    "EngineControl",
    "Exchange",
    "Health",
    "InvalidResponse",
    "ModelError",
    "Overlong",
    "PauseMode",
    "Refused",
    "Retryable",
    "VllmControl",
]
