"""`rollstream bench [NAME]`."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer


def bench(
    name: Annotated[str, typer.Argument(help="Which one; none lists them.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    rivals: Annotated[bool, typer.Option("--rivals", help="Make the environments of what it (or all) is compared with, once.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Remove afterwards what it keeps for its next run.")] = False,
) -> None:
    """List the benchmarks, or run one."""
    from ops.bench import BENCHMARKS, run_benchmark
    from ops.bench.rivals import make_environments
    from pipeline.logs import configure_logs

    configure_logs(as_json=False, level="warning")  # on stderr: with --json, stdout is the report and nothing else
    if name and name not in BENCHMARKS:
        raise typer.BadParameter(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}", param_hint="NAME")
    if rivals:
        make_environments(name, lambda line: typer.echo(line, err=True))
    if not name:
        for known, benchmark in BENCHMARKS.items():
            typer.echo(f"{known:12s} {benchmark.what}")
        return
    report = run_benchmark(name, say=lambda line: typer.echo(line, err=True), discard=discard)
    if as_json:
        typer.echo(orjson.dumps(report.as_map()).decode())
    else:
        typer.echo(report.as_text())
