"""A real, tiny language model and its server: vLLM's wire over a network of half a million parameters on one core of a CPU.

Needs torch (extra `train-tiny`), and nothing else imports it. `python -m workers.llm.tiny FOLDER` serves a checkpoint, and
`examples/train_tiny` trains one.

TinyConfig                              sizes
TinyLM, KeyValues                       the network
save_checkpoint, save_weights, load_model   a folder that vLLM could serve as well
TinyEngine                              the engine, behind `workers.llm.scripted.ModelServer`
"""

from workers.llm.tiny.checkpoint import load_model, save_checkpoint, save_weights
from workers.llm.tiny.config import TinyConfig
from workers.llm.tiny.engine import TinyEngine
from workers.llm.tiny.model import KeyValues, TinyLM

__all__ = ["KeyValues", "TinyConfig", "TinyEngine", "TinyLM", "load_model", "save_checkpoint", "save_weights"]
