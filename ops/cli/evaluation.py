"""`rollstream eval DATA`: a model on a file of problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from ops.cli.interrupted import quietly

if TYPE_CHECKING:
    from ops.evaluation import Numbers, Plan, Standing
    from ops.tasks.foreground import Foreground
    from ops.tasks.rows import Rows


def evaluate_data(
    task: Annotated[str, typer.Option(help="Its name, as `task list` shows it.")],
    data: Annotated[Path | None, typer.Argument(help="JSON lines or Parquet; without it the task's own samples.")] = None,
    server: Annotated[list[str] | None, typer.Option(help="http://host:port or unix:/path.sock; may be repeated.")] = None,
    scripted: Annotated[bool, typer.Option("--scripted", help="A stand-in that knows the answers; it says nothing of a model.")] = False,
    model: Annotated[str | None, typer.Option(help="Name of the model at the servers; empty = their only one.")] = None,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, max=1024, help="Samples of each row.")] = 1,
    k: Annotated[list[int] | None, typer.Option("-k", min=1, help="A pass@k to show; may be repeated. Default: 1 and n.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
    threshold: Annotated[float, typer.Option(help="A sample passes when its score is at least this.")] = 1.0,
    metric: Annotated[str, typer.Option(help="Named part of the reward that is the score.")] = "score",
    temperature: Annotated[float | None, typer.Option(min=0, help="0 = greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of one turn.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Run seed: another one samples otherwise.")] = None,
    request: Annotated[Path | None, typer.Option(help="JSON with fields of a request: sampling, limits, chat, options.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", help="NAME=VALUE, an option of the task; may be repeated.")] = None,
    capability: Annotated[str | None, typer.Option(help="Class of sandboxes: none, isolated or isolated+network.")] = None,
    out: Annotated[Path | None, typer.Option(help="File of results. One that is there is gone on with.")] = None,
    run: Annotated[str, typer.Option(help="Id of the run; default: named after what is asked.")] = "",
    workers: Annotated[
        bool | None,
        typer.Option("--workers/--no-workers", help="Start workers here. Default: where no Redis is configured.", show_default=False),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Rollouts at once, of workers that are started here.")] = None,
    preflight: Annotated[int, typer.Option(min=0, help="Rows whose reference and empty answer are graded first; 0 = none.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="For a program.")] = False,
    config: Annotated[Path | None, typer.Option(help="A rollstream.toml.")] = None,
) -> None:
    """Sample each row n times through the pipeline, grade it, and show pass@k with 95 % intervals. Stopped and started again it does
    what is missing. Ends with 1 when the preflight fails, or no sample is valid."""
    from ops.console import open_console
    from ops.evaluation import Asked, numbers_as_map, plan_of, run_evaluation
    from ops.evaluation.view import results_table, standing_line
    from ops.tasks import foreground
    from ops.tasks.progress import ProgressLine
    from ops.tasks.request import request_fields, template_request
    from ops.tasks.rows import read_rows
    from pipeline.logs import configure_logs

    if scripted and server:
        raise typer.BadParameter("is there instead of a --server", param_hint="--scripted")
    if scripted and workers is False:
        raise typer.BadParameter("is a process beside workers that are started here", param_hint="--scripted")
    ks = tuple(sorted(set(k or (1, samples))))
    if ks[-1] > samples:
        raise typer.BadParameter(f"there are {samples} samples of each row (-n)", param_hint="-k")
    configure_logs(as_json=False, level="error")
    sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    fields = request_fields(task, request, options=option or (), sampling=sampling, model=model, run_seed=seed, capability=capability)

    async def act() -> tuple[Plan, Path, Numbers | None]:
        async with foreground(config) as stages:
            handler = await stages.handler(task)
            rows = read_rows(handler, data, limit=limit)
            handler.check_options(template_request(fields).template().options)
            plan = plan_of(fields, rows.rows, n=samples, threshold=threshold, metric=metric, run=run)
            file = out or Path(f"{plan.run}.jsonl")
            if preflight and not file.exists() and not await _passes(stages, plan, rows, preflight, as_json=as_json):
                return plan, file, None
            asked = Asked(
                servers=tuple(server or ()),
                scripted=scripted,
                with_workers=True if scripted else workers,
                slots=slots,
                out=file,
                ks=ks,
                source=", ".join(rows.sources),
                config=config,
            )
            each = "a sample" if samples == 1 else f"{samples} samples"
            typer.echo(f"run {plan.run}: {plan.n_rows:,} rows, {each} of each; results in {file}", err=True)
            with ProgressLine() as line:

                def told(standing: Standing) -> None:
                    line.say(standing_line(plan, standing))

                return plan, file, await run_evaluation(plan, handler, asked, told=told)

    plan, file, numbers = quietly(act(), said="stopped; what is done is kept, and the same command goes on")
    if numbers is None:
        raise typer.Exit(1)
    if as_json:
        shown: dict[str, Any] = {"task": task, "run": plan.run, "n": samples, "results": str(file), **numbers_as_map(numbers)}
        typer.echo(orjson.dumps(shown).decode())
    else:
        open_console().print(results_table(plan, numbers, file))
    if numbers.asked and not numbers.valid:
        typer.echo(f"no sample is valid: {next(iter(numbers.why_invalid))}", err=True)
        raise typer.Exit(1)


async def _passes(stages: Foreground, plan: Plan, rows: Rows, most: int, *, as_json: bool) -> bool:
    """Grades references and empty answers of some rows, spread over all; says what is wrong."""
    from ops.tasks.preflight import preflight as check
    from ops.tasks.words import preflight_as_map, preflight_lines

    spread = rows.rows[:: max(1, len(rows.rows) // most)][:most]
    found = await check(stages, plan.task, plan.template, spread, jobs=4)
    if not found.passed:
        typer.echo("\n".join(preflight_lines(found)), err=True)
        typer.echo("the preflight failed: mend these rows, or leave it out with --preflight 0", err=True)
        if as_json:
            typer.echo(orjson.dumps({"preflight": preflight_as_map(found)}).decode())
    return found.passed
