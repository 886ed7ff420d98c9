"""Benchmarks: `rollstream bench` lists them, `rollstream bench NAME` runs one. A claim about speed comes with its name here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from ops.bench.report import Report

__all__ = ["BENCHMARKS", "Benchmark", "Report", "run_benchmark"]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: a module here with `run(say) -> Report`, and `discard()` where it keeps something for its next run."""

    module: str
    what: str
    keeps: bool = False


BENCHMARKS = {
    "codec": Benchmark("ops.bench.codec_bench", "token arrays to bytes and back: time and size"),
    "pipeline": Benchmark("ops.bench.pipeline_bench", "no-op jobs through all three stages, against RQ and taskiq"),
    "dapo": Benchmark("ops.bench.dapo_bench", "what the supervisor does to the data and what it costs, against generate-filter-repeat"),
    "turns": Benchmark("ops.bench.turns_bench", "what a turn costs a worker in CPU, beside an agent behind a capturing proxy"),
    "shell": Benchmark("ops.bench.shell_bench", "calls of tools and starts of sandboxes behind walls, beside others' shells", keeps=True),
    "graders": Benchmark("ops.bench.graders_bench", "1,000 verdicts on mathematical answers, and what poisonous ones cost"),
    "cancel": Benchmark("ops.bench.cancel_bench", "how fast a cancel of 256 running jobs is"),
    "concurrency": Benchmark("ops.bench.concurrency_bench", "adaptive concurrency against fixed slots, on modelled engines"),
    "routing": Benchmark("ops.bench.routing_bench", "which server a job gets, against other policies, on modelled servers"),
    "scaling": Benchmark("ops.bench.scaling_bench", "what a job costs Redis with 64 to 1,024 RUN slots on 16 simulated nodes"),
    "nodes": Benchmark("ops.bench.nodes_bench", "what three nodes do more than one, and what the loss of one costs"),
    "leases": Benchmark("ops.bench.leases_bench", "the cost of keeping 10,000 leases"),
    "memory": Benchmark("ops.bench.memory_bench", "what 20,000 acknowledged jobs leave in Redis"),
}


def run_benchmark(name: str, say: Say, *, discard: bool = False) -> Report:
    """Runs one.

    Args:
        name: a key of `BENCHMARKS`.
        say: told what is going on.
        discard: remove what it keeps for its next run.
    """
    module = import_module(BENCHMARKS[name].module)
    run: Callable[[Say], Report] = module.run
    try:
        return run(say)
    finally:
        if discard and BENCHMARKS[name].keeps:
            module.discard()
