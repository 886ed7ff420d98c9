"""`rollstream task list|show|preflight|try`: tasks and their rows, without Redis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from ops.cli.interrupted import quietly

if TYPE_CHECKING:
    from ops.tasks.attempt import Attempt
    from ops.tasks.listing import ListedTask, SandboxesHere
    from ops.tasks.preflight import CheckedRow, Preflight
    from pipeline.messages import JobTemplate

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Its name, as `task list` shows it.")]
Data = Annotated[Path | None, typer.Option(help="JSON lines or Parquet; without it the task's own samples.")]
Request = Annotated[Path | None, typer.Option(help="JSON with fields of a request: sampling, limits, chat, options.")]
Options = Annotated[list[str] | None, typer.Option("--option", help="NAME=VALUE, an option of the task; may be repeated.")]
Capability = Annotated[str | None, typer.Option(help="Class of sandboxes: none, isolated or isolated+network.")]
Json = Annotated[bool, typer.Option("--json", help="For a program.")]
Config = Annotated[Path | None, typer.Option(help="A rollstream.toml.")]
RowId = Annotated[str, typer.Option("--row", help="Id of a row, or its place from 0 on.")]


@app.command("list")
def list_tasks(as_json: Json = False, config: Config = None) -> None:
    """Built-in and installed tasks: what is asked, how rows may be written, samples, and whether their sandboxes are to be had here."""
    from ops.tasks.listing import listed_tasks, sandboxes_here
    from ops.tasks.words import task_as_map, task_lines
    from workers.handlers import Handlers

    _say_logs("error")  # a trial of sandboxes warns of what a service would be

    async def act() -> tuple[list[ListedTask], SandboxesHere | None]:
        async with Handlers(config=config) as handlers:
            tasks = await listed_tasks(handlers)
        return tasks, await sandboxes_here(config) if any(task.sandbox is not None for task in tasks) else None

    tasks, here = quietly(act())
    if as_json:
        typer.echo(orjson.dumps([task_as_map(task, here) for task in tasks]).decode())
    else:
        typer.echo("\n".join(task_lines(tasks, here)))


@app.command("show")
def show(
    task: Name,
    data: Data = None,
    row: Annotated[str | None, typer.Option(help="Id of a row, or its place from 0 on; default: the first.")] = None,
    request: Request = None,
    option: Options = None,
    capability: Capability = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """What a task is: how rows may be written, its options and limits; and one row as the model meets it: the prompt as text, tools,
    sandbox."""
    from ops.console import open_console
    from ops.tasks.listing import sandboxes_here
    from ops.tasks.page import TaskPage, page_as_map, render_page, task_page
    from ops.tasks.rows import read_rows
    from workers.handlers import Handlers

    _say_logs("error")
    template = _template(task, request, option, capability)

    async def act() -> tuple[TaskPage, SandboxesHere | None]:
        async with Handlers(config=config) as handlers:
            handler = await handlers.find(task)
            has_row = data is not None or row is not None or handler.samples
            page = task_page(handler, template, read_rows(handler, data).named(row or "0") if has_row else None)
        needs_sandbox = page.row is not None and page.row.sandbox is not None
        return page, await sandboxes_here(config) if needs_sandbox else None

    page, here = quietly(act())
    if as_json:
        typer.echo(orjson.dumps(page_as_map(page, here)).decode())
    else:
        render_page(open_console(), page, here)


@app.command("preflight")
def preflight(
    task: Name,
    data: Data = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first rows.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Rows at a time.")] = 4,
    request: Request = None,
    option: Options = None,
    capability: Capability = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Grade the reference answer of each row, which must score 1, and an empty one, which must score 0. Ends with 1 when a row does not."""
    from ops.tasks import foreground
    from ops.tasks.preflight import preflight as check
    from ops.tasks.progress import ProgressLine
    from ops.tasks.rows import read_rows
    from ops.tasks.words import preflight_as_map, preflight_lines

    _say_logs()
    template = _template(task, request, option, capability)

    async def act() -> Preflight:
        async with foreground(config) as stages:
            handler = await stages.handler(task)
            handler.check_options(template.options)
            rows = read_rows(handler, data, limit=limit)
            with ProgressLine() as line:
                done = failed = 0

                def told(checked: CheckedRow) -> None:
                    nonlocal done, failed
                    done, failed = done + 1, failed + bool(checked.faults)
                    line.say(f"{task}: {done:,} of {len(rows.rows):,} rows graded, {failed:,} not as they should be")

                return await check(stages, task, template, rows.rows, jobs=jobs, told=told)

    found = quietly(act())
    typer.echo(orjson.dumps(preflight_as_map(found)).decode() if as_json else "\n".join(preflight_lines(found)))
    raise typer.Exit(0 if found.passed else 1)


@app.command("try")
def try_task(
    task: Name,
    data: Data = None,
    row: RowId = "0",
    server: Annotated[str, typer.Option(help="http://host:port or unix:/path.sock of a model server.")] = "",
    scripted: Annotated[bool, typer.Option("--scripted", help="A stand-in that knows the answers; it says nothing of a model.")] = False,
    model: Annotated[str | None, typer.Option(help="Name of the model at the server; empty = its first.")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the key of the server.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Run seed: another one samples otherwise.")] = None,
    request: Request = None,
    option: Options = None,
    capability: Capability = None,
    whole: Annotated[bool, typer.Option(help="Context uncut.")] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """One job in the foreground, through INIT, RUN and EVAL, without Redis; each turn is shown as it ends, then the grade. Ends with 1 when
    the job could not be graded, whatever the reward."""
    from ops.console import open_console
    from ops.not_reachable import NotReachable
    from ops.sandbox_service import ServiceNotStarted
    from ops.tasks.attempt_view import attempt_as_map, show_attempt
    from ops.tasks.model_server import key_in
    from pipeline.errors import InvalidRequest
    from pipeline.logs import redact_text
    from pipeline.messages import Stage
    from workers.stages.failures import described, failure_of

    if bool(server) == scripted:
        raise typer.BadParameter("name a --server, or take --scripted", param_hint="--server")
    _say_logs()
    template = _template(task, request, option, capability, model=model, run_seed=seed)
    key = key_in(api_key_file)
    console = None if as_json else open_console()

    async def act() -> Attempt:
        return await show_attempt(console, template, data=data, row=row, server=server, api_key=key, whole=whole, config=config)

    try:
        done = quietly(act())
    except (typer.Exit, InvalidRequest, ServiceNotStarted, NotReachable):
        raise
    except Exception as error:  # whatever a handler raises: a job in the foreground has nobody else to tell
        failure = failure_of(Stage.RUN, error)
        if failure.traceback:
            typer.echo(redact_text(failure.traceback), err=True)
        typer.echo(f"rollstream: the job broke: {redact_text(described(failure))}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(orjson.dumps(attempt_as_map(done), option=orjson.OPT_SERIALIZE_NUMPY).decode())


def _template(
    task: str,
    request: Path | None,
    option: list[str] | None,
    capability: str | None,
    *,
    model: str | None = None,
    run_seed: int | None = None,
) -> JobTemplate:
    from dataclasses import replace

    from ops.tasks.request import request_fields, template_request

    fields = request_fields(task, request, options=option or (), capability=capability, model=model, run_seed=run_seed)
    template = template_request(fields).template()
    return replace(template, exact_logprobs=False)  # nothing is trained on it


def _say_logs(level: str = "warning") -> None:
    from pipeline.logs import configure_logs

    configure_logs(as_json=False, level=level)
