"""A real, tiny language model and its server: vLLM's wire over a network of half a million parameters on one core of a CPU.

Needs torch (extra `train-tiny`): only those that want it import what is here. `python -m workers.llm.tiny FOLDER` serves a checkpoint, and
`examples/train_tiny` trains one.

config       TinyConfig: sizes, and the files of a checkpoint
model        TinyLM, KeyValues: the network
checkpoint   save_checkpoint, save_weights, load_model: a folder that vLLM could serve as well
engine       TinyEngine, behind `workers.llm.scripted.ModelServer`; `seat` is a call there
sampling     distributions and draws; needs no torch
"""
