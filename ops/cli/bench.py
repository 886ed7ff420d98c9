"""`rollstream bench [NAME]`."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer


def bench(
    name: Annotated[str, typer.Argument(help="Which one; none lists them.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    rivals: Annotated[bool, typer.Option(help="Make an environment with what it is compared with, once.")] = False,
) -> None:
    """List the benchmarks, or run one."""
    from ops.bench import BENCHMARKS, run_benchmark
    from ops.bench.rivals import make_environment
    from pipeline.logs import configure_logs

    configure_logs(as_json=False, level="warning")  # on stderr: with --json, stdout is the report and nothing else
    if rivals:
        typer.echo(f"rivals are in {make_environment()}", err=True)
    if not name:
        for known, benchmark in BENCHMARKS.items():
            typer.echo(f"{known:12s} {benchmark.what}")
        return
    if name not in BENCHMARKS:
        raise typer.BadParameter(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}", param_hint="NAME")
    report = run_benchmark(name, say=lambda line: typer.echo(line, err=True))
    if as_json:
        typer.echo(orjson.dumps(report.as_map()).decode())
    else:
        typer.echo(report.as_text())
