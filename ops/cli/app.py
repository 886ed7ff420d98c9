"""All commands, by noun."""

from __future__ import annotations

import typer

from ops.cli import bench, job, llm, queue, redis, run, supervisor, top, worker

app = typer.Typer(
    name="rollstream",
    help="Rollouts as a service for RL training of multi-turn LLM agents, on Redis Streams.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(worker.app, name="worker", help="Processes that serve a stage.")
app.add_typer(supervisor.app, name="supervisor", help="The DAPO supervisor.")
app.add_typer(llm.app, name="llm", help="Inference servers.")
app.add_typer(run.app, name="run", help="Training runs: list, look, cancel.")
app.add_typer(job.app, name="job", help="Single jobs: look, cancel.")
app.add_typer(queue.app, name="queue", help="Streams and what waits in them.")
app.add_typer(redis.app, name="redis", help="The Redis behind it: a server for several machines, a prompt.")
app.command("top", help="A live view of the pipeline.")(top.top)
app.command("bench", help="Benchmarks: list and run.")(bench.bench)
