"""`python -m workers.llm.scripted`: the scripted server as a process. Its first line of output is its address.

SIGTERM or SIGINT ends it, and so does the end of the process that started it, when that passed the reading end of a pipe as
`ROLLSTREAM_PARENT_FD`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from pipeline.messages import RoutedExperts
from workers.llm.backend import LogprobsMode
from workers.llm.scripted.options import Latency, ServerOptions, WireVersion
from workers.llm.scripted.policy import PolicyOptions
from workers.llm.scripted.problems import read_problems
from workers.llm.scripted.process import serve_until_signal
from workers.llm.scripted.server import ScriptedServer
from workers.llm.tokenizer import load


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; defaults are those of the option records."""
    server, latency, policy = ServerOptions(), Latency(), PolicyOptions()
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.scripted",
        description="Speaks vLLM's wire or SGLang's and says what a script says. Its rewards say nothing of a model.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 = any free one")
    add("--socket", type=Path, help="a Unix socket instead of a port")
    add("--problems", type=Path, nargs="+", default=[], metavar="FILE", help="JSON lines with `question` and `answer`")
    add("--tokenizer", default="", help="tokenizer.json or its folder; default: our own small one")
    add("--wire", choices=get_args(WireVersion), default=server.wire)
    add("--model", default=server.model)
    add("--max-model-len", type=int, default=server.max_model_len)
    add("--logprobs-mode", choices=get_args(LogprobsMode), default=server.logprobs_mode)
    add("--no-scale-out", action="store_true", help="no /inference/v1 routes")
    add("--no-dev-mode", action="store_true", help="no pause, versions and the like")
    add("--weights", default=server.weights, help="name of the weights that it starts with; default: what its label names")
    add("--routed-experts", type=experts_of, metavar="LAYERS,TOP_K,EXPERTS", help="make up such experts and send them")
    add("--max-running", type=int, default=server.max_running)
    add("--api-key-file", type=Path, help="file that holds the key which guards /v1 and /inference")
    add("--key-on-every-route", action="store_true", help="the key guards all others, too")
    add("--first-token-ms", type=float, default=latency.first_token_s * 1000)
    add("--per-token-ms", type=float, default=latency.per_token_s * 1000)
    add("--latency-sigma", type=float, default=latency.sigma)
    add("--seed", type=int, default=policy.seed)
    add("--all-right", type=float, default=policy.all_right, help="share of problems every member solves")
    add("--all-wrong", type=float, default=policy.all_wrong, help="share of problems none solves")
    add("--tool-rate", type=float, default=policy.tool_rate)
    add("--mean-steps", type=float, default=policy.mean_steps, help="sentences of thought, in the mean")
    return parser.parse_args(argv)


def experts_of(text: str) -> RoutedExperts:
    """What `--routed-experts` says."""
    layers, top_k, experts = map(int, text.split(","))
    return RoutedExperts(layers=layers, top_k=top_k, experts=experts)


def build(arguments: argparse.Namespace) -> ScriptedServer:
    """The server that a command line asks for."""
    options = ServerOptions(
        wire=arguments.wire,
        model=arguments.model,
        max_model_len=arguments.max_model_len,
        scale_out=not arguments.no_scale_out,
        dev_mode=not arguments.no_dev_mode,
        logprobs_mode=arguments.logprobs_mode,
        max_running=arguments.max_running,
        routed_experts=arguments.routed_experts,
        weights=arguments.weights,
        api_key=arguments.api_key_file.read_text(encoding="utf-8").strip() if arguments.api_key_file else "",
        key_on_every_route=arguments.key_on_every_route,
        latency=Latency(
            first_token_s=arguments.first_token_ms / 1000,
            per_token_s=arguments.per_token_ms / 1000,
            sigma=arguments.latency_sigma,
        ),
        policy=PolicyOptions(
            seed=arguments.seed,
            all_right=arguments.all_right,
            all_wrong=arguments.all_wrong,
            tool_rate=arguments.tool_rate,
            mean_steps=arguments.mean_steps,
        ),
    )
    return ScriptedServer(
        options,
        read_problems(arguments.problems),
        tokenizer=load(arguments.tokenizer),
        host=arguments.host,
        port=arguments.port,
        socket_path=arguments.socket,
    )


if __name__ == "__main__":
    asyncio.run(serve_until_signal(build(parse(sys.argv[1:]))))
