"""All commands, by noun."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.cli import (
    bench,
    config,
    dead,
    doctor,
    evaluation,
    gateway,
    housekeeping,
    image,
    job,
    llm,
    metrics,
    node,
    plan,
    queue,
    redis,
    run,
    sandbox,
    status,
    supervisor,
    task,
    top,
    trajectory,
    worker,
)

app = typer.Typer(
    name="rollstream",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"rollstream {version('rollstream')}")
        raise typer.Exit


@app.callback()
def rollstream(
    version: Annotated[bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Rollouts as a service for RL training of multi-turn LLM agents, on Redis Streams."""


app.add_typer(node.app, name="node", help="The processes of a machine: run, list, look, scale, drain.")
app.add_typer(worker.app, name="worker", help="Processes that serve a stage.")
app.add_typer(supervisor.app, name="supervisor", help="The DAPO supervisor.")
app.add_typer(metrics.app, name="metrics", help="Metrics for Prometheus.")
app.add_typer(sandbox.app, name="sandbox", help="The sandboxes of a node: serve, list, look, stop.")
app.add_typer(gateway.app, name="gateway", help="The pipeline over HTTP.")
app.add_typer(llm.app, name="llm", help="Inference servers.")
app.add_typer(image.app, name="image", help="Files of sandboxes: bring, build, list, check, remove.")
app.add_typer(task.app, name="task", help="Tasks: list, look, check their data, try one.")
app.add_typer(run.app, name="run", help="Training runs: list, look, change, cancel.")
app.add_typer(job.app, name="job", help="Single jobs: look, read a grader's log, judge again, cancel.")
app.add_typer(trajectory.app, name="trajectory", help="What jobs produced: check, show, save.")
app.add_typer(queue.app, name="queue", help="Streams and what waits in them.")
app.add_typer(dead.app, name="dead", help="Dead letters: list, look, try again, drop.")
app.add_typer(config.app, name="config", help="Settings, and where they come from.")
app.add_typer(housekeeping.app, name="housekeeping", help="Sweeps, reports and exports beside the queue: run, look, do one.")
app.add_typer(redis.app, name="redis", help="The Redis behind it: a server for several machines, a prompt.")
app.command("eval", help="A model on a file of problems: pass@k, resumable.")(evaluation.evaluate_data)
app.command("status", help="What is wrong, why, and what to do: verdict, cause, next command.")(status.status)
app.command("doctor", help="What this machine, its settings and its Redis are fit for, and what to do.")(doctor.doctor)
app.command("top", help="A live view of the pipeline.")(top.top)
app.command("plan", help="How much a goal needs: slots, nodes, model servers, Redis.")(plan.plan)
app.command("bench", help="Benchmarks: list and run.")(bench.bench)
