"""`python -m workers.llm.tiny FOLDER`: serves a checkpoint. Its first line of output is its address.

SIGTERM or SIGINT ends it, and so does the end of the process that started it, when that passed the reading end of a pipe as
`ROLLSTREAM_PARENT_FD`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from workers.llm.scripted import ModelServer, ServerOptions
from workers.llm.scripted.process import serve_until_signal
from workers.llm.tiny.checkpoint import load_model
from workers.llm.tiny.config import TOKENIZER
from workers.llm.tiny.engine import TinyEngine
from workers.llm.tokenizer import load


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.tiny", description="Serves a tiny checkpoint on vLLM's wire.")
    add = parser.add_argument
    add("folder", type=Path, help="config.json, model.safetensors and tokenizer.json")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 = any free one")
    add("--socket", type=Path, help="a Unix socket instead of a port")
    add("--model", default="rollstream-tiny")
    add("--max-running", type=int, default=32, help="calls sampled at a time")
    add("--threads", type=int, default=1, help="of torch")
    return parser.parse_args(argv)


def build(arguments: argparse.Namespace) -> ModelServer[TinyEngine]:
    """The server that a command line asks for."""
    torch.set_num_threads(arguments.threads)
    model, tokenizer = load_model(arguments.folder), load(arguments.folder / TOKENIZER)
    options = ServerOptions(model=arguments.model, max_model_len=model.config.max_len, max_running=arguments.max_running)
    return ModelServer(
        options,
        tokenizer,
        lambda: TinyEngine(options, tokenizer, model),
        host=arguments.host,
        port=arguments.port,
        socket_path=arguments.socket,
    )


if __name__ == "__main__":
    asyncio.run(serve_until_signal(build(parse(sys.argv[1:]))))
